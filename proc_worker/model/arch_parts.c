/* The models of several parts whose language part the decoder can run, and which architecture that is. Constant data; runs in the worker while it loads. */
#include "proc_worker/model/arch_table.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
static const struct {
	const char *name, *model_type, *text;
	bool either; /* "tie_word_embeddings" is true where the part says so, whatever the whole does */
	bool headless; /* where the whole does not say it, embeddings are tied in files without an lm_head */
	bool thinker; /* the whole also speaks: what it says of the part and of embeddings is in "thinker_config" */
} TEXT_PARTS[] = {
	{"AyaVisionForConditionalGeneration", "cohere2", "Cohere2ForCausalLM", .headless = true},
	{"Apertus1p5ForConditionalGeneration", "apertus1p5_text", "Apertus1p5TextForCausalLM"},
	{"Cohere2VisionForConditionalGeneration", "cohere2", "Cohere2ForCausalLM", .headless = true},
	{"Ernie4_5_VLMoeForConditionalGeneration", "ernie4_5_vl_moe_text", "Ernie4_5_VLMoeTextModel", .headless = true},
	{"Ernie4_5_VL_MoeForConditionalGeneration", "ernie4_5_vl_moe_text", "Ernie4_5_VLMoeTextModel", .headless = true},
	{"Exaone4_5_ForConditionalGeneration", "exaone4", "Exaone4ForCausalLM"},
	{"Exaone4_5_ForConditionalGeneration", "exaone4_5_text", "Exaone4ForCausalLM"},
	{"Gemma3ForConditionalGeneration", "gemma3_text", "Gemma3ForCausalLM"},
	{"Gemma3nForConditionalGeneration", "gemma3n_text", "Gemma3nForCausalLM"},
	{"Gemma4ForConditionalGeneration", "gemma4_text", "Gemma4ForCausalLM"},
	{"Glm4vForConditionalGeneration", "glm4v_text", "Glm4vTextModel", .either = true},
	{"Glm4vMoeForConditionalGeneration", "glm4v_moe_text", "Glm4vMoeTextModel", .either = true},
	{"Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text", "Gemma4UnifiedForCausalLM"},
	{"Glm46VForConditionalGeneration", "glm4v_text", "Glm4vTextModel"},
	{"Glm46VForConditionalGeneration", "glm4v_moe_text", "Glm4vMoeTextModel"},
	{"GlmOcrForConditionalGeneration", "glm_ocr_text", "GlmOcrTextModel", .either = true},
	{"GotOcr2ForConditionalGeneration", "qwen2", "Qwen2ForCausalLM", .headless = true},
	{"Granite4VisionForConditionalGeneration", "granite4_vision_text", "GraniteForCausalLM"},
	{"GraniteDoclingForConditionalGeneration", "granite_docling_text", "GraniteForCausalLM", .headless = true},
	{"HCXVisionV2ForCausalLM", "hyperclovax", "HyperCLOVAXForCausalLM", .headless = true},
	{"HyperCLOVAXVisionV2ForConditionalGeneration", "hyperclovax", "HyperCLOVAXForCausalLM", .headless = true},
	{"HYV4VLForConditionalGeneration", "hy_v4_vl_text", "HYV4VLTextModel"},
	{"Idefics3ForConditionalGeneration", "llama", "LlamaForCausalLM"},
	{"InternVLForConditionalGeneration", "qwen2", "Qwen2ForCausalLM", .headless = true},
	{"InternVLForConditionalGeneration", "qwen3", "Qwen3ForCausalLM", .headless = true},
	{"InternVLForConditionalGeneration", "qwen3_moe", "Qwen3MoeForCausalLM", .headless = true},
	{"InternVLForConditionalGeneration", "llama", "LlamaForCausalLM", .headless = true},
	{"KimiK25ForConditionalGeneration", "deepseek_v3", "DeepseekV3ForCausalLM", .headless = true},
	{"KimiK25ForConditionalGeneration", "kimi_k2", "DeepseekV3ForCausalLM", .headless = true},
	{"Kimi_K25ForConditionalGeneration", "deepseek_v3", "DeepseekV3ForCausalLM", .headless = true},
	{"Kimi_K25ForConditionalGeneration", "kimi_k2", "DeepseekV3ForCausalLM", .headless = true},
	{"Lfm2VlForConditionalGeneration", "lfm2", "Lfm2ForCausalLM", .headless = true},
	{"Llama4ForConditionalGeneration", "llama4_text", "Llama4ForCausalLM"},
	{"Lfm3VlForConditionalGeneration", "lfm3", "Lfm3ForCausalLM", .headless = true},
	{"LightOnOcrForConditionalGeneration", "qwen3", "Qwen3ForCausalLM", .headless = true},
	{"LightOnOCRForConditionalGeneration", "qwen3", "Qwen3ForCausalLM", .headless = true},
	{"LlavaForConditionalGeneration", "llama", "LlamaForCausalLM", .either = true},
	{"LlavaForConditionalGeneration", "mistral", "MistralForCausalLM", .either = true},
	{"LlavaForConditionalGeneration", "qwen2", "Qwen2ForCausalLM", .either = true},
	{"LlavaNextForConditionalGeneration", "llama", "LlamaForCausalLM"},
	{"LlavaNextForConditionalGeneration", "mistral", "MistralForCausalLM"},
	{"LlavaNextForConditionalGeneration", "qwen2", "Qwen2ForCausalLM"},
	{"LlavaOnevisionForConditionalGeneration", "qwen2", "Qwen2ForCausalLM", .either = true},
	{"MiniCPMV4_6ForConditionalGeneration", "qwen3_5_text", "Qwen3_5ForCausalLM"},
	{"MiniCPMV4_7ForConditionalGeneration", "qwen3_5_text", "Qwen3_5ForCausalLM"},
	{"Mistral3ForConditionalGeneration", "mistral", "MistralForCausalLM"},
	{"Mistral3ForConditionalGeneration", "ministral3", "Ministral3ForCausalLM"},
	{"Mistral3ForConditionalGeneration", "mistral4", "Mistral4ForCausalLM"},
	{"MllamaForConditionalGeneration", "mllama_text_model", "MllamaTextModel"},
	{"MuseGlimmerForConditionalGeneration", "muse_glimmer_text", "MuseGlimmerTextModel"},
	{"Ovis2ForConditionalGeneration", "qwen2", "Qwen2ForCausalLM", .headless = true},
	{"PaddleOCRVLForConditionalGeneration", "paddleocr_vl_text", "PaddleOCRTextModel", .either = true, .headless = true},
	{"PerceptionLMForConditionalGeneration", "llama", "LlamaForCausalLM"},
	{"QianfanOCRForConditionalGeneration", "qwen3", "Qwen3ForCausalLM"},
	{"Qwen2_5OmniModel", "qwen2_5_omni_text", "Qwen2ForCausalLM", .thinker = true},
	{"Qwen2_5OmniForConditionalGeneration", "qwen2_5_omni_text", "Qwen2ForCausalLM", .thinker = true},
	{"Qwen2_5OmniThinkerForConditionalGeneration", "qwen2_5_omni_text", "Qwen2ForCausalLM"},
	{"Qwen2VLForConditionalGeneration", "qwen2_vl_text", "Qwen2ForCausalLM", .either = true},
	{"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", "Qwen2ForCausalLM", .either = true},
	{"Qwen3_5ForConditionalGeneration", "qwen3_5_text", "Qwen3_5ForCausalLM"},
	{"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"},
	{"Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe_text", "Qwen3OmniMoeTextModel", .thinker = true},
	{"Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe_text", "Qwen3OmniMoeTextModel"},
	{"Qwen3VLForConditionalGeneration", "qwen3_vl_text", "Qwen3ForCausalLM"},
	{"Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", "Qwen3VLMoeTextModel"},
	{"SmolVLMForConditionalGeneration", "llama", "LlamaForCausalLM"},
	{"Step3p7ForConditionalGeneration", "step3p5", "Step3p5ForCausalLM"},
	{"VipLlavaForConditionalGeneration", "llama", "LlamaForCausalLM"},
};
/* clang-format on */

bool arch_ties_either(const char *name)
{
	for (size_t i = 0; i < COUNT_OF(TEXT_PARTS); i++)
		if (TEXT_PARTS[i].either && !strcmp(TEXT_PARTS[i].name, name))
			return true;
	return false;
}

bool arch_ties_headless(const char *name)
{
	for (size_t i = 0; i < COUNT_OF(TEXT_PARTS); i++)
		if (TEXT_PARTS[i].headless && !strcmp(TEXT_PARTS[i].name, name))
			return true;
	return false;
}

bool arch_thinks(const char *name)
{
	for (size_t i = 0; i < COUNT_OF(TEXT_PARTS); i++)
		if (TEXT_PARTS[i].thinker && !strcmp(TEXT_PARTS[i].name, name))
			return true;
	return false;
}

const struct arch *arch_find_text_part(const char *name, const char *model_type, char *known, size_t bytes)
{
	size_t used = 0;

	known[0] = 0;
	for (size_t i = 0; i < COUNT_OF(TEXT_PARTS); i++) {
		if (strcmp(TEXT_PARTS[i].name, name) != 0)
			continue;
		if (!model_type || !strcmp(TEXT_PARTS[i].model_type, model_type))
			return arch_find(TEXT_PARTS[i].text);
		if (used < bytes)
			used += (size_t)snprintf(known + used, bytes - used, "%s'%s'", used ? " or " : "", TEXT_PARTS[i].model_type);
	}
	return NULL;
}

const char *arch_part_name_at(size_t i)
{
	return i < COUNT_OF(TEXT_PARTS) ? TEXT_PARTS[i].name : NULL;
}
