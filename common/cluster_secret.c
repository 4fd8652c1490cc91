/* Reads the secret of a group of nodes and derives keys from it. Runs in every process that speaks with another node.
 * The text itself is not kept. */
#include "common/cluster_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/log.h"

_Static_assert(CLUSTER_KEY_BYTES >= crypto_generichash_KEYBYTES_MIN && CLUSTER_KEY_BYTES <= crypto_generichash_KEYBYTES_MAX,
	       "a key is a key of BLAKE2b");

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

enum err cluster_secret_set(struct cluster_secret *out, const char *text, size_t bytes, const char *where,
			    struct err_msg *em)
{
	static const char domain[] = "tercet cluster secret";

	while (bytes != 0 && is_space(text[bytes - 1]))
		bytes--;
	while (bytes != 0 && is_space(*text)) {
		text++;
		bytes--;
	}
	if (bytes < CLUSTER_SECRET_BYTES_MIN || bytes > CLUSTER_SECRET_BYTES_MAX)
		return err_set(em, ERR_INVALID,
			       "%s: the cluster secret has %zu bytes; it must have %d to %d, and be random: openssl "
			       "rand -hex 32",
			       where, bytes, CLUSTER_SECRET_BYTES_MIN, CLUSTER_SECRET_BYTES_MAX);
	int failed = sodium_init() < 0;
	ASSERT(!failed);
	crypto_generichash(out->key, sizeof(out->key), (const u8 *)text, bytes, (const u8 *)domain, sizeof(domain) - 1);
	return ERR_OK;
}

static enum err read_file(struct cluster_secret *out, const char *path, struct err_msg *em)
{
	char text[CLUSTER_SECRET_BYTES_MAX + 64];
	struct stat st;
	size_t bytes = 0;
	ssize_t n = 1;

	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_set(em, ERR_IO, "--cluster-secret-file %.300s: %s", path, strerror(errno));
	if (fstat(fd, &st) == 0 && (st.st_mode & S_IROTH))
		LOG_WARN("SECRET_IS_OPEN", "file=\"%s\" mode=%03o reason=\"every user can read it; chmod 600 keeps it secret\"",
			 path, (unsigned)(st.st_mode & 0777));
	while (bytes < sizeof(text) && (n = read(fd, text + bytes, sizeof(text) - bytes)) > 0)
		bytes += (size_t)n;
	enum err e = n < 0 ? err_set(em, ERR_IO, "--cluster-secret-file %.300s: %s", path, strerror(errno))
			   : cluster_secret_set(out, text, bytes, "--cluster-secret-file", em);
	sodium_memzero(text, sizeof(text));
	close(fd);
	return e;
}

enum err cluster_secret_read(struct cluster_secret *out, const char *path, struct err_msg *em)
{
	const char *text = getenv(CLUSTER_SECRET_ENV);

	if (path[0] != '\0')
		return read_file(out, path, em);
	if (text != NULL && text[0] != '\0')
		return cluster_secret_set(out, text, strlen(text), CLUSTER_SECRET_ENV, em);
	return err_set(em, ERR_DENIED,
		       "several nodes need a secret that they share, so that nobody else joins them: make one with "
		       "\"openssl rand -hex 32 >FILE; chmod 600 FILE\", copy it to every node and give "
		       "--cluster-secret-file FILE, or set " CLUSTER_SECRET_ENV " to its content");
}

void cluster_secret_derive(const struct cluster_secret *secret, const char *purpose, u8 key[CLUSTER_KEY_BYTES])
{
	crypto_generichash(key, CLUSTER_KEY_BYTES, (const u8 *)purpose, strlen(purpose), secret->key,
			   sizeof(secret->key));
}
