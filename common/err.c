/* The error table's texts and messages for people. Pure; every process and thread. */
#include "common/err.h"

#include <stdio.h>
#include <string.h>

const char *err_text(enum err e)
{
	switch (e) {
#define ERR_TEXT(name, text) \
	case ERR_##name:     \
		return text;
		ERR_MAP(ERR_TEXT)
#undef ERR_TEXT
	case ERR_COUNT:
		break;
	}
	return "unknown error";
}

const char *err_name(enum err e)
{
	switch (e) {
#define ERR_NAME(name, text) \
	case ERR_##name:     \
		return #name;
		ERR_MAP(ERR_NAME)
#undef ERR_NAME
	case ERR_COUNT:
		break;
	}
	return "UNKNOWN";
}

enum err err_set(struct err_msg *em, enum err e, const char *fmt, ...)
{
	va_list args;

	if (em == NULL)
		return e;
	va_start(args, fmt);
	vsnprintf(em->text, sizeof(em->text), fmt, args);
	va_end(args);
	return e;
}

void err_prefix(struct err_msg *em, const char *fmt, ...)
{
	char old[sizeof(em->text)];
	va_list args;
	int n;

	if (em == NULL)
		return;
	memcpy(old, em->text, sizeof(old));
	old[sizeof(old) - 1] = '\0';
	va_start(args, fmt);
	n = vsnprintf(em->text, sizeof(em->text), fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n + 3 > sizeof(em->text))
		return; /* not even ": " fits behind it */
	size_t used = (size_t)n;
	size_t room = sizeof(em->text) - used - 3;
	if (strlen(old) > room)
		old[room] = '\0';
	memcpy(em->text + used, ": ", 2);
	memcpy(em->text + used + 2, old, strlen(old) + 1);
}
