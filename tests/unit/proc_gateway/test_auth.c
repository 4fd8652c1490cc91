/* API keys. */
#include <criterion/criterion.h>

#include "common/options.h"
#include "proc_gateway/auth.h"

static char first[] = "sk-first", second[] = "sk-second";
static char *keys[] = {first, second};

static bool check(u32 count, const char *header, u64 *tenant)
{
	struct auth a;
	struct option_list list = {.items = keys, .count = count};
	auth_init(&a, &list);
	return auth_check(&a, header, tenant);
}

Test(auth, without_keys_everybody_may_come)
{
	u64 tenant = 1;
	cr_assert(check(0, NULL, &tenant));
	cr_assert_eq(tenant, 0);
	cr_assert(check(0, "Bearer whatever", &tenant));
}

Test(auth, only_whole_keys_behind_bearer_are_taken)
{
	u64 tenant;
	cr_expect(check(2, "Bearer sk-first", &tenant));
	cr_expect(check(2, "bearer   sk-second", &tenant));
	cr_expect(!check(2, NULL, &tenant));
	cr_expect(!check(2, "", &tenant));
	cr_expect(!check(2, "Bearer ", &tenant));
	cr_expect(!check(2, "Bearer sk-firs", &tenant));
	cr_expect(!check(2, "Bearer sk-first2", &tenant));
	cr_expect(!check(2, "Bearer sk-firstsk-second", &tenant));
	cr_expect(!check(2, "Basic sk-first", &tenant));
	cr_expect(!check(1, "Bearer sk-second", &tenant));
}

Test(auth, several_keys_are_told_apart_and_one_is_not)
{
	u64 one, two, single;
	cr_assert(check(2, "Bearer sk-first", &one) && check(2, "Bearer sk-second", &two));
	cr_assert(check(1, "Bearer sk-first", &single));
	cr_assert(one != 0 && two != 0 && one != two);
	cr_assert_eq(single, 0);
}
