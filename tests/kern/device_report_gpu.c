/* A real device has nothing to say but its error; compute-sanitizer has more. */
#include "tests/kern/device.h"

const char *device_report(void)
{
	return "";
}
