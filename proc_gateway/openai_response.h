/* The JSON of replies and of stream chunks. Pure: everything is appended to a buffer. */
#ifndef TERCET_PROC_GATEWAY_OPENAI_RESPONSE_H
#define TERCET_PROC_GATEWAY_OPENAI_RESPONSE_H

#include "proc_gateway/requests.h"

/* The whole reply of a group whose choices are all done. */
void openai_response_write(struct group *g, struct buf *out);
/* Whether all numbers of the choice's embedding have come. */
bool openai_embedding_is_whole(const struct choice *c);
/* False with 500 in `e`: they have not, or one is no number. */
bool openai_embedding_check(const struct choice *c, struct api_error *e);
/* The whole reply of /v1/embeddings, of a group whose choices are all done (openai_embeddings.c). */
void openai_embeddings_write(const struct group *g, struct buf *out);
/* One chunk with what the choice has not written yet; empties it. */
void openai_chunk_write(struct choice *c, struct buf *out);
/* The chunk with the usage of the whole request and no choices. */
void openai_usage_chunk_write(const struct group *g, struct buf *out);
/* The reply of /tokenize, /detokenize or /v1/messages/count_tokens. Safe on the reader's thread. */
void openai_tokens_write(const struct openai_model *m, const struct openai_request *request, struct buf *out);
/* Whether a chunk would tell the client anything. */
bool openai_chunk_due(const struct choice *c);

#endif
