/* What the files that read bodies of /v1/messages share. */
#ifndef TERCET_PROC_GATEWAY_MESSAGES_PRIV_H
#define TERCET_PROC_GATEWAY_MESSAGES_PRIV_H

#include "proc_gateway/chat_writer.h"

/* Writes "messages" of a chat, and what says that the answer goes on where the last one ends, out of "system" and "messages"
 * of `root`. `w` is inside of the chat's object. False: `e` says what is wrong. */
bool messages_write_turns(struct json_writer *w, json_val root, struct api_error *e);

#endif
