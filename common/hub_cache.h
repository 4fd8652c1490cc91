/* Models that tools of the Hugging Face Hub have downloaded: a cache of folders models--ORG--NAME, with the commits' files in
 * snapshots/COMMIT and what branches and tags stand for in refs/REVISION. Only read here; nothing is downloaded. */
#ifndef TERCET_COMMON_HUB_CACHE_H
#define TERCET_COMMON_HUB_CACHE_H

#include "common/err.h"
#include "common/types.h"

/* Whether `text` may be a model's name on the Hub: "ORG/NAME" or "NAME" of letters, digits, '.', '_' and '-'. */
bool hub_cache_is_name(const char *text);
/* The folder of a model of that name at `revision`: a branch, a tag or a whole commit; "" is main. The cache is $HF_HUB_CACHE,
 * $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub, by the first variable
 * that is set. ERR_NOT_FOUND: not there, with what is missing and where it was looked for; ERR_INVALID: what is no name or no
 * revision; ERR_TOO_LONG. */
MUST_CHECK enum err hub_cache_find(char *out, size_t bytes, const char *name, const char *revision, struct err_msg *em);

/* What a cache calls the model that `folder` is a snapshot of, models--ORG--NAME, or a folder of that name itself. false: it is neither, or
 * longer than fits. */
bool hub_cache_repo_of(char *out, size_t bytes, const char *folder);
/* What the model in `folder` is called where nobody gives it another name: ORG/NAME of what hub_cache_repo_of knows, else the
 * last part of the path. Cut at bytes - 1. */
void hub_cache_name_of(char *out, size_t bytes, const char *folder);

#endif
