/* One line an event: time, process, level, EVENT_ID, key=value ... to stderr, text or JSON.
 * The only module with file-level state. Never call it per token. */
#ifndef TERCET_COMMON_LOG_H
#define TERCET_COMMON_LOG_H

#include <stdbool.h>

#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

/* `process` ("worker-0") is copied. `json` selects JSON lines. Colour only on a terminal without NO_COLOR. */
void log_init(const char *process, enum log_level level, bool json);
bool log_enabled(enum log_level level);

/* `event` is a stable id in UPPER_CASE; `fmt` gives space-separated key=value pairs, values with spaces
 * quoted by the caller as key="...". Cut at 2,000 bytes. Thread-safe, one write(2) a line. */
void log_event(enum log_level level, const char *event, const char *fmt, ...) PRINTF_LIKE(3, 4);

#define LOG_DEBUG(event, ...) log_event(LOG_LEVEL_DEBUG, event, __VA_ARGS__)
#define LOG_INFO(event, ...)  log_event(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define LOG_WARN(event, ...)  log_event(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define LOG_ERROR(event, ...) log_event(LOG_LEVEL_ERROR, event, __VA_ARGS__)

#ifdef __cplusplus
}
#endif
#endif
