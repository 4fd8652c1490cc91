#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cluster_secret.h"

static struct cluster_secret s;
static struct err_msg em;

static enum err set(const char *text)
{
	return cluster_secret_set(&s, text, strlen(text), "here", &em);
}

Test(cluster_secret, white_space_around_it_does_not_count)
{
	struct cluster_secret first;

	cr_assert_eq(set("0123456789abcdef"), ERR_OK);
	first = s;
	cr_assert_eq(set(" 0123456789abcdef\r\n"), ERR_OK);
	cr_assert_eq(memcmp(&first, &s, sizeof(s)), 0);
	cr_assert_eq(set("0123456789abcdeF"), ERR_OK);
	cr_assert_neq(memcmp(&first, &s, sizeof(s)), 0);
}

Test(cluster_secret, a_short_and_a_long_one_are_refused)
{
	char text[CLUSTER_SECRET_BYTES_MAX + 2];

	cr_assert_eq(set("0123456789abcde \n"), ERR_INVALID);
	cr_assert(strstr(em.text, "has 15 bytes"), "%s", em.text);
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	cr_assert_eq(set(text), ERR_INVALID);
	text[sizeof(text) - 2] = '\0';
	cr_assert_eq(set(text), ERR_OK);
}

Test(cluster_secret, keys_follow_from_secret_and_purpose)
{
	u8 a[CLUSTER_KEY_BYTES], b[CLUSTER_KEY_BYTES];

	cr_assert_eq(set("0123456789abcdef"), ERR_OK);
	cluster_secret_derive(&s, "one", a);
	cluster_secret_derive(&s, "one", b);
	cr_assert_eq(memcmp(a, b, sizeof(a)), 0);
	cluster_secret_derive(&s, "two", b);
	cr_assert_neq(memcmp(a, b, sizeof(a)), 0);
	cr_assert_eq(set("0123456789abcdeg"), ERR_OK);
	cluster_secret_derive(&s, "one", b);
	cr_assert_neq(memcmp(a, b, sizeof(a)), 0);
}

Test(cluster_secret, comes_from_the_file_else_from_the_environment)
{
	char path[] = "/tmp/tercet-secret-XXXXXX";
	struct cluster_secret file;
	int fd = mkstemp(path);

	cr_assert_eq(write(fd, "of the file, long enough\n", 25), 25);
	close(fd);
	setenv(CLUSTER_SECRET_ENV, "of the environment, long enough", 1);
	cr_assert_eq(cluster_secret_read(&s, "", &em), ERR_OK);
	cr_assert_eq(cluster_secret_read(&file, path, &em), ERR_OK);
	cr_assert_neq(memcmp(&file, &s, sizeof(s)), 0);
	cr_assert_eq(set("of the file, long enough"), ERR_OK);
	cr_assert_eq(memcmp(&file, &s, sizeof(s)), 0);
	unlink(path);
	cr_assert_eq(cluster_secret_read(&s, path, &em), ERR_IO);
	cr_assert(strstr(em.text, path), "%s", em.text);
	unsetenv(CLUSTER_SECRET_ENV);
	cr_assert_eq(cluster_secret_read(&s, "", &em), ERR_DENIED);
	cr_assert(strstr(em.text, "openssl rand -hex 32"), "%s", em.text);
	cr_assert_eq(cluster_secret_read(&s, "/", &em), ERR_IO);
}
