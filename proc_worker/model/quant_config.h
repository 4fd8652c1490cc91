/* How the matrices of a quantized checkpoint are stored: "quantization_config" of config.json. */
#ifndef TERCET_PROC_WORKER_MODEL_QUANT_CONFIG_H
#define TERCET_PROC_WORKER_MODEL_QUANT_CONFIG_H

#include "common/err.h"
#include "common/json.h"
#include "common/types.h"

enum quant_format {
	QUANT_NONE,
	QUANT_AWQ,    /* 4 bits, packed by outputs (AutoAWQ's "gemm") */
	QUANT_GPTQ,   /* 4 bits, packed by inputs (AutoGPTQ, GPTQModel) */
	QUANT_PACKED, /* compressed-tensors "pack-quantized": 4 or 8 bits, packed along a row */
	QUANT_INT8,   /* compressed-tensors "int-quantized": bytes */
	QUANT_FP8,    /* E4M3 bytes: compressed-tensors "float-quantized", or Hugging Face's "fp8" */
	QUANT_MXFP4,  /* E2M1 in blocks of 32 inputs with a power of two each (OCP Microscaling), gpt-oss's "mxfp4" */
};

struct quant_config {
	enum quant_format format;
	u32 bits;
	u32 group;  /* neighbouring inputs of an output that share a scale; 0: all, or all of the tensor */
	bool zeros; /* there are zero points */
	u32 zero_offset;    /* what is stored of them is that much too small */
	u32 block_rows;	    /* FP8 in blocks of outputs ... */
	u32 block_columns;  /* ... and inputs; 0: one scale a tensor or row */
	bool scale_inverse; /* FP8: the scale's name ends in "_inv"; it multiplies all the same */
};

/* From "quantization_config" of the object `config`; QUANT_NONE where there is none. Every field is
 * understood or known to say nothing about the weights. ERR_UNSUPPORTED, ERR_FORMAT: name the field, what was
 * found and what is supported. */
MUST_CHECK enum err quant_config_read(struct quant_config *q, json_val config, struct err_msg *em);

#endif
