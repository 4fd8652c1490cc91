/* Sessions: the engine keeps a conversation's tokens, a client sends only the new turn. What both sides of a SUBMIT
 * have to know about them; docs/SCHEDULER.md tells how they are kept. */
#ifndef TERCET_COMMON_SESSION_H
#define TERCET_COMMON_SESSION_H

/* Names: 1 to 64 letters, digits and "._:-", so that they fit into logs and URLs as they are. */
enum { SESSION_NAME_MAX = 64, SESSION_JOIN_MAX = 64 };
#define SESSION_NAME_ALLOWED "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-"

/* Bits of SUBMIT's session_flags. */
enum session_flag {
	SESSION_BEGIN = 1 << 0, /* it must not be there yet; without this flag it must */
	SESSION_STEP = 1 << 1,	/* go back to the first session_step tokens of the history, then on from there */
	SESSION_END = 1 << 2,	/* this turn is its last: nothing of it is kept */
	SESSION_AGAIN = 1 << 3, /* sent before: should the turn have ended already, it takes its own place */
	SESSION_FLAGS = (1 << 4) - 1,
};

enum session_action { SESSION_GET, SESSION_DELETE, SESSION_ACTION_COUNT };

#endif
