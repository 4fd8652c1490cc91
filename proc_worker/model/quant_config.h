/* How the matrices of a quantized checkpoint are stored: "quantization_config" of config.json. */
#ifndef TERCET_PROC_WORKER_MODEL_QUANT_CONFIG_H
#define TERCET_PROC_WORKER_MODEL_QUANT_CONFIG_H

#include "common/err.h"
#include "common/json.h"
#include "common/types.h"

enum quant_format {
	QUANT_NONE,
	QUANT_AWQ,    /* 4 bits, packed by outputs (AutoAWQ's "gemm") */
	QUANT_GPTQ,   /* 2, 3, 4 or 8 bits, packed by inputs (AutoGPTQ, GPTQModel) */
	QUANT_PACKED, /* compressed-tensors "pack-quantized": 2 to 8 bits, packed along a row */
	QUANT_INT8,   /* bytes: compressed-tensors "int-quantized", or bitsandbytes' 8 bits */
	QUANT_FP8,    /* E4M3 bytes: compressed-tensors "float-quantized", Hugging Face's "fp8", and others */
	QUANT_MXFP4,  /* E2M1 in blocks of 32 inputs with a power of two each (OCP Microscaling) */
	QUANT_NVFP4,  /* E2M1 in blocks of 16 inputs with an E4M3 number each, and a float for all */
	QUANT_BNB4,   /* bitsandbytes: places in a table of 16 values, in blocks of neighbours with a scale each */
	QUANT_TERNARY, /* BitNet: -1, 0 and 1 in 2 bits each, of four rows that are a quarter of all apart, with a number for all of the tensor */
	QUANT_GGUF,   /* blocks of the types of ggml, tensor by tensor (quant_gguf.h) */
};

/* What the parts of a matrix are called, where a format has several conventions. */
enum quant_names {
	NAMES_OWN,	  /* the format's only ones */
	NAMES_COMPRESSED, /* compressed-tensors */
	NAMES_MODELOPT,	  /* NVIDIA's Model Optimizer */
	NAMES_BITSANDBYTES,
	NAMES_QUARK, /* AMD's Quark */
};

struct quant_scheme {
	enum quant_format format;
	enum quant_names names;
	u32 bits;
	u32 group;  /* neighbouring inputs of an output that share a scale; 0: all, or all of the tensor */
	bool zeros; /* there are zero points */
	u32 zero_offset;    /* what is stored of them is that much too small */
	u32 block_rows;	    /* FP8 in blocks of outputs ... */
	u32 block_columns;  /* ... and inputs; 0: one scale a tensor or row */
	bool scale_inverse; /* FP8: the scale's name ends in "_inv"; it multiplies all the same */
	bool scale_divides; /* QUANT_TERNARY: values are divided by it */
	bool twos_complement; /* QUANT_AWQ: codes and zero points are from -8 to 7 */
	bool at_load; /* QUANT_TERNARY: tensors are plain, and rounded as they are read: quant_ternary.h */
	bool scale_powers;  /* FP8: scales are powers of two, a byte each (E8M0) */
};

enum { QUANT_SCHEMES_MAX = 8 };

/* Which of several schemes a matrix has its parts say: those of one fit no other, or mean the same in both. */
struct quant_config {
	u32 count; /* 0: not quantized */
	struct quant_scheme schemes[QUANT_SCHEMES_MAX];
};

/* From "quantization_config" of the object `config`; none where there is none. Every field is
 * understood or known to say nothing about the weights. ERR_UNSUPPORTED, ERR_FORMAT: name the field, what was
 * found and what is supported. */
MUST_CHECK enum err quant_config_read(struct quant_config *q, json_val config, struct err_msg *em);

/* The same from hf_quant_config.json, which Model Optimizer writes beside config.json: `root` of the file. */
MUST_CHECK enum err quant_config_read_file(struct quant_config *q, json_val root, struct err_msg *em);

/* Whether some matrices may be stored so. */
bool quant_config_has(const struct quant_config *q, enum quant_format format);

#endif
