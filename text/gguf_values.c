/* Owns the reading of a family's values from a file in GGUF, and what is written of them one by one. Runs once while a model is imported. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/gguf_config_priv.h"

void gguf_config_fail(struct gguf_config *c, enum err e, const char *fmt, ...)
{
	char text[sizeof(c->em->text)];
	va_list args;

	if (c->e != ERR_OK)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	c->e = err_set(c->em, e, "%s", text);
}

void gguf_config_know(struct gguf_config *c, const char *name)
{
	snprintf(c->key, sizeof(c->key), "%s.%s", c->arch, name);
	for (u32 i = 0; i < c->asked_count; i++)
		if (strcmp(c->asked[i], name) == 0)
			return;
	if (c->asked_count < GGUF_KEYS_MAX)
		c->asked[c->asked_count++] = name;
}

/* A list has one number for each layer, with those that guess further tokens. */
static bool check_count(struct gguf_config *c, u64 count)
{
	if (count != c->blocks)
		gguf_config_fail(c, ERR_FORMAT, "%s has %llu values; it must have one for each of the %u layers", c->key, (unsigned long long)count,
				 c->blocks);
	return count == c->blocks;
}

static bool same_int(const struct gguf *g, const char *key, i64 *out)
{
	u64 count;
	i64 other;

	if (!gguf_array(g, key, &count) || count == 0 || !gguf_array_int(g, key, 0, out))
		return false;
	for (u64 i = 1; i < count; i++)
		if (!gguf_array_int(g, key, i, &other) || other != *out)
			return false;
	return true;
}

bool gguf_config_int(struct gguf_config *c, const char *name, u32 *out)
{
	u64 count;
	i64 value;

	gguf_config_know(c, name);
	if (c->e != ERR_OK || !gguf_has(c->g, c->key))
		return false;
	if (c->blocks > 0 && gguf_array(c->g, c->key, &count) && !check_count(c, count)) /* that there are so many is known by then */
		return false;
	if ((!gguf_int(c->g, c->key, &value) && !same_int(c->g, c->key, &value)) || value < 0 || value > GGUF_COUNT_MAX) {
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s must be an integer from 0 to %d, the same for all layers", c->key, GGUF_COUNT_MAX);
		return false;
	}
	*out = (u32)value;
	return true;
}

bool gguf_config_layer_int(struct gguf_config *c, const char *name, u32 layer, u32 *out)
{
	u64 count;
	i64 value;

	gguf_config_know(c, name);
	if (c->e != ERR_OK || !gguf_array(c->g, c->key, &count))
		return gguf_config_int(c, name, out);
	if (!check_count(c, count))
		return false;
	if (!gguf_array_int(c->g, c->key, layer, &value) || value < 0 || value > GGUF_COUNT_MAX)
		gguf_config_fail(c, ERR_FORMAT, "%s must have integers from 0 to %d", c->key, GGUF_COUNT_MAX);
	else
		*out = (u32)value;
	return c->e == ERR_OK;
}

bool gguf_config_some_int(struct gguf_config *c, const char *name, u32 *out)
{
	u32 value, found = 0;

	for (u32 i = 0; i < c->layers && gguf_config_layer_int(c, name, i, &value); i++) {
		if (value != 0 && found != 0 && value != found)
			gguf_config_fail(c, ERR_UNSUPPORTED, "%s has %u and %u; all layers must have the same, or 0", c->key, found, value);
		found = value ? value : found;
	}
	if (c->e != ERR_OK || found == 0)
		return false;
	*out = found;
	return true;
}

/* As long as the file has tensors, whatever number of layers it says. */
bool gguf_config_layers_have(const struct gguf_config *c, const char *name)
{
	static const char block[] = "blk.";
	u32 count = gguf_tensor_count(c->g);

	for (u32 i = 0; i < count; i++) {
		const char *text = gguf_tensor_at(c->g, i)->name, *digits = text + sizeof(block) - 1;
		if (strncmp(text, block, sizeof(block) - 1) != 0 || *digits < '0' || *digits > '9')
			continue;
		char *rest;
		unsigned long long layer = strtoull(digits, &rest, 10);
		if (*rest == '.' && layer < c->layers && strcmp(rest + 1, name) == 0)
			return true;
	}
	return false;
}

bool gguf_config_float(struct gguf_config *c, const char *name, double *out)
{
	gguf_config_know(c, name);
	if (c->e != ERR_OK || !gguf_has(c->g, c->key))
		return false;
	if (gguf_float(c->g, c->key, out) && isfinite(*out))
		return true;
	gguf_config_fail(c, ERR_FORMAT, "%s must be a number", c->key);
	return false;
}

bool gguf_config_bool(struct gguf_config *c, const char *name, bool fallback)
{
	gguf_config_know(c, name);
	if (c->e == ERR_OK && gguf_has(c->g, c->key) && !gguf_bool(c->g, c->key, &fallback))
		gguf_config_fail(c, ERR_FORMAT, "%s must be true or false", c->key);
	return fallback;
}

struct gguf_text gguf_config_text(struct gguf_config *c, const char *name)
{
	struct gguf_text text;

	gguf_config_know(c, name);
	text = gguf_text_of(c->g, c->key);
	if (c->e == ERR_OK && !text.bytes && gguf_has(c->g, c->key))
		gguf_config_fail(c, ERR_FORMAT, "%s must be a text", c->key);
	return text;
}

u32 gguf_config_need_int(struct gguf_config *c, const char *name)
{
	u32 value = 0;

	if (!gguf_config_int(c, name, &value) || value == 0)
		gguf_config_fail(c, ERR_FORMAT, "%s is missing; it must be an integer above 0", c->key);
	return value;
}

double gguf_config_need_float(struct gguf_config *c, const char *name)
{
	double value = 0;

	if (!gguf_config_float(c, name, &value))
		gguf_config_fail(c, ERR_FORMAT, "%s is missing; it must be a number", c->key);
	return value;
}

bool gguf_config_has_tensor(const struct gguf_config *c, const char *name)
{
	return gguf_tensor_find(c->g, name) != NULL;
}

void gguf_config_write_uint(struct gguf_config *c, const char *field, u32 value)
{
	json_key(&c->w, field);
	json_write_uint(&c->w, value);
}

/* Files hold floats: 1e-05 of the checkpoint's config.json is 1e-05 again. */
void gguf_config_write_float(struct gguf_config *c, const char *field, double value)
{
	json_key(&c->w, field);
	json_write_float(&c->w, (float)value);
}

void gguf_config_write_bool(struct gguf_config *c, const char *field, bool value)
{
	json_key(&c->w, field);
	json_write_bool(&c->w, value);
}
