/* In which language a request says what its output may be. text/grammar.h compiles all of them; messages carry kind, flags
 * and source. */
#ifndef TERCET_COMMON_GRAMMAR_KIND_H
#define TERCET_COMMON_GRAMMAR_KIND_H

/* Travels in SUBMIT and STEP: append only. */
enum grammar_kind {
	GRAMMAR_KIND_NONE,
	GRAMMAR_CHOICE,	     /* a JSON array of strings: one of them, letter by letter */
	GRAMMAR_REGEX,	     /* an expression that the whole text matches, in ECMAScript's syntax */
	GRAMMAR_JSON_SCHEMA, /* the text of a JSON Schema */
	GRAMMAR_JSON_OBJECT, /* any JSON object; the source is empty */
	GRAMMAR_EBNF,	     /* GBNF as llama.cpp writes it; the text is what the rule `root` derives */
	GRAMMAR_PARTS,	     /* a JSON array of texts and JSON Schemas, one behind the other */
	GRAMMAR_KIND_COUNT
};

enum grammar_flag {
	GRAMMAR_COMPACT = 1u << 0, /* JSON without white space between its tokens */
	GRAMMAR_FLAGS_ALL = GRAMMAR_COMPACT,
};

enum { GRAMMAR_SOURCE_MAX = 128 * 1024 }; /* bytes of a source */

#endif
