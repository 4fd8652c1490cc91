/* clean_up_tokenization_spaces, as a stream. */
#ifndef TERCET_TEXT_CLEAN_UP_PRIV_H
#define TERCET_TEXT_CLEAN_UP_PRIV_H

#include "text/text.h"

/* `held`: how much each rule holds back; zeroes at the start. Appends what is settled. */
void clean_up_push(u8 held[static TEXT_CLEAN_RULES], const char *text, size_t bytes, struct buf *out);
/* Appends what is held back. */
void clean_up_end(u8 held[static TEXT_CLEAN_RULES], struct buf *out);
bool clean_up_holds(const u8 held[static TEXT_CLEAN_RULES]);

#endif
