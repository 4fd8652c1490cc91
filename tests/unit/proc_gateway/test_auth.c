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
	return auth_check(&a, (struct auth_shown){.authorization = header}, tenant);
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

static bool shows(struct auth_shown shown, u64 *tenant, u64 *owner)
{
	struct option_list list = {.items = keys, .count = 2};
	struct auth a;
	auth_init(&a, &list);
	*owner = auth_owner(&a, shown);
	return auth_check(&a, shown, tenant);
}

Test(auth, a_key_in_its_own_header_is_as_good_as_a_bearer)
{
	u64 tenant, other, owner, other_owner;
	cr_assert(shows((struct auth_shown){"Bearer sk-second", NULL}, &tenant, &owner));
	cr_assert(shows((struct auth_shown){NULL, "sk-second"}, &other, &other_owner));
	cr_expect(tenant == other && owner == other_owner && owner != 0);
	cr_assert(shows((struct auth_shown){"Bearer wrong", "sk-second"}, &other, &other_owner));
	cr_expect(tenant == other && owner == other_owner);
	cr_expect(!shows((struct auth_shown){NULL, ""}, &other, &other_owner));
	cr_expect(!shows((struct auth_shown){NULL, "Bearer sk-second"}, &other, &other_owner));
	cr_expect(!shows((struct auth_shown){"sk-first", "sk-secon"}, &other, &other_owner));
}
