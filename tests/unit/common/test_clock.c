#include <criterion/criterion.h>
#include <time.h>

#include "common/clock.h"

Test(clock, counts_monotonic_nanoseconds)
{
	struct timespec wait = {.tv_nsec = 2000000};
	uint64_t a = clock_now_ns();

	nanosleep(&wait, NULL);
	uint64_t b = clock_now_ns();
	cr_assert_geq(b - a, 2000000);
	cr_assert_lt(b - a, 5000000000ull);
}

Test(clock, wall_time_is_that_of_the_system)
{
	int64_t d = clock_wall_s() - (int64_t)time(NULL);

	cr_assert(d >= -1 && d <= 1);
}
