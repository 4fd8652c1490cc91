/* The emulated device says more than an error's number. */
#include "tests/cuda_emu/emu.h"
#include "tests/kern/device.h"

const char *device_report(void)
{
	return emu_report();
}
