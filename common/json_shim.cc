/* The only C++ of the common folder: simdjson's DOM turned into our flat node array, and the standard
 * library's shortest number formatting. No exception leaves this file. */
#include "common/json_priv.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include <simdjson.h>

extern "C" {
#include "common/json.h"
#include "common/utf8.h"
}

namespace dom = simdjson::dom;

namespace
{

struct filler {
	struct json_node *nodes;
	size_t count;
};

void fill_string(struct json_node *n, std::string_view text)
{
	n->type = JSON_STRING;
	n->size = (uint32_t)text.size();
	n->text = text.data(); /* simdjson puts a NUL behind every string of its buffer */
}

/* Recursion is bounded by the parser's depth limit. */
void fill(struct filler *f, dom::element e)
{
	size_t at = f->count++;
	struct json_node *n = &f->nodes[at];

	*n = {};
	n->size = 1;
	switch (e.type()) {
	case dom::element_type::ARRAY: {
		uint64_t count = 0;
		for (dom::element child : dom::array(e)) {
			fill(f, child);
			count++;
		}
		n->type = JSON_ARRAY;
		n->count = count;
		n->size = (uint32_t)(f->count - at);
		break;
	}
	case dom::element_type::OBJECT: {
		uint64_t count = 0;
		for (dom::key_value_pair member : dom::object(e)) {
			struct json_node *key = &f->nodes[f->count++];
			*key = {};
			fill_string(key, member.key);
			fill(f, member.value);
			count++;
		}
		n->type = JSON_OBJECT;
		n->count = count;
		n->size = (uint32_t)(f->count - at);
		break;
	}
	case dom::element_type::INT64:
		n->type = JSON_INT;
		n->i = int64_t(e);
		break;
	case dom::element_type::UINT64:
		n->type = JSON_INT;
		n->is_unsigned = true;
		n->u = uint64_t(e);
		break;
	case dom::element_type::DOUBLE:
		n->type = JSON_DOUBLE;
		n->d = double(e);
		break;
	case dom::element_type::STRING:
		fill_string(n, std::string_view(e));
		break;
	case dom::element_type::BOOL:
		n->type = JSON_BOOL;
		n->b = bool(e);
		break;
	case dom::element_type::NULL_VALUE:
		n->type = JSON_NULL;
		break;
	}
}

const char *reason_of(simdjson::error_code code)
{
	switch (code) {
	case simdjson::DEPTH_ERROR:
		return "it is nested deeper than 64 levels";
	case simdjson::STRING_ERROR:
		return "a string holds an invalid escape";
	case simdjson::T_ATOM_ERROR:
	case simdjson::F_ATOM_ERROR:
	case simdjson::N_ATOM_ERROR:
		return "a word that is none of true, false, null";
	case simdjson::NUMBER_ERROR:
		return "a number is malformed or out of range";
	case simdjson::UTF8_ERROR:
		return "it is not valid UTF-8";
	case simdjson::EMPTY:
		return "it is empty";
	case simdjson::UNESCAPED_CHARS:
		return "a string holds an unescaped control character";
	case simdjson::UNCLOSED_STRING:
		return "a string is not closed";
	default:
		return "a comma, colon, bracket or value is missing or misplaced";
	}
}

/* Where the first ill-formed character begins. */
size_t utf8_error_offset(const char *text, size_t bytes)
{
	size_t i = 0;
	uint32_t code;

	while (i < bytes) {
		int n = utf8_next(text + i, bytes - i, &code);
		if (n <= 0)
			return i;
		i += (size_t)n;
	}
	return SIZE_MAX;
}

/* simdjson refuses documents with integers beyond 64 bits, which real files hold (a tokenizer_config.json
 * says "model_max_length": 1000000000000000019884624838656). Writes ".0" behind them, which makes them
 * doubles. False when there is nothing of the kind. */
bool widen_integers(const char *text, size_t bytes, std::string *out)
{
	bool any = false, in_string = false;

	for (size_t i = 0; i < bytes;) {
		char c = text[i];
		if (in_string || !((c >= '0' && c <= '9') || c == '-')) {
			if (in_string && c == '\\' && i + 1 < bytes)
				out->push_back(text[i++]);
			else if (c == '"')
				in_string = !in_string;
			out->push_back(text[i++]);
			continue;
		}
		size_t begin = i++;
		while (i < bytes && text[i] >= '0' && text[i] <= '9')
			i++;
		out->append(text + begin, i - begin);
		bool integer = i == bytes || (text[i] != '.' && text[i] != 'e' && text[i] != 'E');
		if (integer && i - begin >= 19) {
			out->append(".0");
			any = true;
		}
		while (i < bytes && std::strchr("+-.eE0123456789", text[i]) != nullptr && text[i] != '\0')
			out->push_back(text[i++]);
	}
	return any;
}

enum json_shim_status failed(simdjson::error_code code, const char *text, size_t bytes,
			     struct json_shim_error *error)
{
	const char *reason = reason_of(code), *precise = reason;
	size_t at = code == simdjson::UTF8_ERROR ? utf8_error_offset(text, bytes) : json_locate(text, bytes, &precise);
	bool known = std::strcmp(reason, reason_of(simdjson::TAPE_ERROR)) != 0 && std::strncmp(precise, "NaN", 3) != 0;

	error->reason = known ? reason : precise;
	error->offset = at;
	if (code == simdjson::MEMALLOC)
		return JSON_SHIM_NO_MEMORY;
	return code == simdjson::CAPACITY ? JSON_SHIM_TOO_LONG : JSON_SHIM_MALFORMED;
}

enum json_shim_status parse(struct json_doc *doc, const char *text, size_t bytes,
			    struct json_shim_error *error)
{
	dom::parser parser;
	dom::element root;
	simdjson::error_code code = parser.allocate(bytes < 64 ? 64 : bytes, JSON_LEVELS_MAX);

	if (code == simdjson::SUCCESS)
		code = parser.parse(text, bytes).get(root);
	if (code == simdjson::NUMBER_ERROR) {
		std::string widened;
		if (widen_integers(text, bytes, &widened)) {
			code = parser.allocate(widened.size(), JSON_LEVELS_MAX);
			if (code == simdjson::SUCCESS)
				code = parser.parse(widened).get(root);
		}
	}
	if (code != simdjson::SUCCESS)
		return failed(code, text, bytes, error);
	/* The first word of the tape says how long it is, and no value takes less than one word. */
	size_t most = (size_t)(parser.doc.tape[0] & simdjson::internal::JSON_VALUE_MASK) + 1;
	struct filler f = {static_cast<struct json_node *>(std::malloc(most * sizeof(struct json_node))), 0};
	if (f.nodes == nullptr)
		return JSON_SHIM_NO_MEMORY;
	fill(&f, root);
	void *fitted = std::realloc(f.nodes, f.count * sizeof(struct json_node));
	doc->nodes = fitted != nullptr ? static_cast<struct json_node *>(fitted) : f.nodes;
	doc->strings = parser.doc.string_buf.release();
	return JSON_SHIM_OK;
}

/* Shortest digits are the library's; the layout is that of Python's repr: plain from 1e-4 up to 1e16, else
 * with an exponent of at least two digits. */
template <typename real> size_t format(char out[JSON_DOUBLE_BYTES_MAX], real value)
{
	char text[JSON_DOUBLE_BYTES_MAX];
	auto end = std::to_chars(text, text + sizeof(text), value, std::chars_format::scientific).ptr;
	*end = '\0';
	int exponent = std::atoi(std::strchr(text, 'e') + 1);

	if (exponent < -4 || exponent >= 16) {
		size_t n = (size_t)(end - text);
		std::memcpy(out, text, n);
		return n;
	}
	end = std::to_chars(out, out + JSON_DOUBLE_BYTES_MAX - 3, value, std::chars_format::fixed).ptr;
	if (std::memchr(out, '.', (size_t)(end - out)) == nullptr) {
		*end++ = '.';
		*end++ = '0';
	}
	return (size_t)(end - out);
}

} // namespace

enum json_shim_status json_shim_parse(struct json_doc *doc, const char *text, size_t bytes,
				      struct json_shim_error *error)
{
	*doc = {};
	*error = {"", SIZE_MAX};
	try {
		return parse(doc, text, bytes, error);
	} catch (const std::bad_alloc &) {
		return JSON_SHIM_NO_MEMORY;
	}
}

void json_shim_free(struct json_doc *doc)
{
	std::free(doc->nodes);
	delete[] doc->strings;
	*doc = {};
}

size_t json_shim_format_double(char out[JSON_DOUBLE_BYTES_MAX], double value)
{
	return format(out, value);
}

size_t json_shim_format_float(char out[JSON_DOUBLE_BYTES_MAX], float value)
{
	return format(out, value);
}
