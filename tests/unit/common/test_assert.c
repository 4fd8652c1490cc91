#include <criterion/criterion.h>
#include <signal.h>

#include "common/assert.h"

Test(assert, failed_expression_aborts, .signal = SIGABRT)
{
	int two = 2;

	ASSERT(two == 3);
}

Test(assert, true_expression_does_nothing)
{
	int calls = 0;

	ASSERT(++calls == 1);
	cr_assert_eq(calls, 1);
}
