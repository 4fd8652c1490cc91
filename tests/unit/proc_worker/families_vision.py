"""Small models of several parts whose language parts are families of their own, for families_differential.py: config.json is the whole's, the
reference the whole model, which is given text alone. Files have the tensors under the names that the Hub has (save_pretrained writes these), or under
those that transformers has in memory."""
import re

import families_cases
import families_newer
import families_newest
import families_recurrent
from families_fields import LLAMA3, MISSING

VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
SIGLIP, CLIP = {**VISION, "model_type": "siglip_vision_model"}, {**VISION, "model_type": "clip_vision_model", "projection_dim": 16}
GLM_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 40, "image_size": 28, "patch_size": 14}
OUTSIDE = ("architectures", "torch_dtype", "transformers_version", "tie_word_embeddings", "initializer_range")
GLM4V = {"hidden_size": 48, "head_dim": MISSING, "partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 1]}}


OWN = {**{part: families_newer.config(part, {}) for part in families_newer.PARTS}, **families_newest.PARTS, "lfm2": families_recurrent.LFM2, "lfm3": families_recurrent.LFM3, "qwen3_5_text": families_recurrent.QWEN3_5}


def text(family, model_type=None, **changes):
    """What a language part says of itself: not what the whole says."""
    usual = OWN[family] if family in OWN else families_cases.config(family, {})
    config = {**{k: v for k, v in usual.items() if k not in OUTSIDE}, "model_type": model_type or family, **changes}
    return {k: v for k, v in config.items() if v is not MISSING}


LLAVA_TEXT = {k: MISSING for k in ("num_key_value_heads", "attention_bias", "hidden_act", "mlp_bias", "pretraining_tp", "rope_scaling", "rope_theta")}
TEXTS = {"llama": text("llama"), "mistral": text("mistral"), "qwen2": text("qwen2"), "qwen3": text("qwen3"), "qwen3_moe": text("qwen3_moe"),
         "exaone4": text("exaone4"), "deepseek_v3": text("deepseek_v3"), "granite4_vision_text": text("granite", "granite4_vision_text"), "granite_docling_text": text("granite", "granite_docling_text", pad_token_id=0),
         "glm_ocr_text": text("glm4", "glm_ocr_text", **{**GLM4V, "head_dim": 12, "partial_rotary_factor": MISSING, "attention_bias": False,
                                                          "rope_scaling": {"rope_type": "default", "mrope_section": [2, 2, 2]}}),
         "paddleocr_vl_text": text("ernie4_5", "paddleocr_vl_text", rope_scaling={"rope_type": "default", "mrope_section": [2, 2, 2]}),
         "qwen2_5_omni_text": text("qwen2", "qwen2_5_omni_text", rope_scaling={"rope_type": "default", "type": "default", "mrope_section": [1, 2, 2]}),
         "qwen3_omni_moe_text": text("qwen3_moe", "qwen3_omni_moe_text", use_qk_norm=True, shared_expert_intermediate_size=0, rope_scaling={
             "rope_type": "default", "type": "default", "interleaved": True, "mrope_interleaved": True, "mrope_section": [2, 2, 2]}),
         **{part: text(part) for part in (*families_newer.PARTS, *families_newest.PARTS)}, "hyperclovax": text("hyperclovax"), "qwen3_5_text": text("qwen3_5_text"), "cohere2": text("cohere2"), "lfm2": text("lfm2"), "lfm3": text("lfm3"), "glm4v_text": text("glm4", "glm4v_text", **GLM4V),
         "glm4v_moe_text": text("glm4_moe", "glm4v_moe_text", rope_scaling={"rope_type": "default", "mrope_section": [1, 1, 1]},
                                num_nextn_predict_layers=MISSING)}
# Of a part whose other fields are those of its configuration class.
SPARSE = {"llama": {"num_key_value_heads": 4}, "mistral": {"sliding_window": None}, "qwen2": {"num_key_value_heads": 4}, "qwen3": {"num_key_value_heads": 4},
          "cohere2": {"layer_types": ["full_attention", "sliding_attention"] * 20}, "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
          "glm4v_text": {"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 0]}},
          "glm4v_moe_text": {"head_dim": 8, "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 0]}, "num_hidden_layers": 2}}
SPARSE_WIDTH = {"cohere2": 256, "glm4v_text": 128, "glm4v_moe_text": 96}
# As they are saved beside a part that speaks.
TALKERS = {"qwen2_5_omni_thinker": "Qwen2_5Omni", "qwen3_omni_moe_thinker": "Qwen3OmniMoe"}
OMNI_AUDIO = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "num_mel_bins": 8, "output_dim": 40}
OLDER = {"rope_scaling": None, "neftune_noise_alpha": 0.0, "perceiver_config": {"model_type": "vllama3", "qk_layer_norms_perceiver": False},
         "pixel_shuffle_factor": 2, "qk_layer_norms": False, "rope_interleaved": False, "use_resampler": False}

# Whole model's type: its architecture, fields, and which language parts it has.
WHOLES = {
    "aya_vision": ("AyaVision", {"image_token_index": 1, "vision_config": SIGLIP}, ["cohere2"]),
    "cohere2_vision": ("Cohere2Vision", {"image_token_id": 1, "vision_config": SIGLIP, "alignment_intermediate_size": 16}, ["cohere2"]),
    "glm4v": ("Glm4v", {"image_token_id": 1, "vision_config": GLM_VISION}, ["glm4v_text"]),
    "ernie4_5_vl_moe": ("Ernie4_5_VLMoe", {"image_token_id": 100295, "video_token_id": 103367, "vision_config": {
        "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 14, "rms_norm_eps": 1e-6}}, ["ernie4_5_vl_moe_text"]),
    "exaone4_5": ("Exaone4_5_", {"image_token_id": 1, "vision_config": {**GLM_VISION, "num_key_value_heads": 2, "fullatt_block_indexes": [0]}}, ["exaone4"]),
    "glm46v": ("Glm46V", {"image_token_id": 1, "vision_config": {**GLM_VISION, "model_type": "glm4v_vision"}}, ["glm4v_text", "glm4v_moe_text"]),
    "glm_ocr": ("GlmOcr", {"image_token_id": 1, "vision_config": GLM_VISION}, ["glm_ocr_text"]),
    "paddleocr_vl": ("PaddleOCRVL", {"image_token_id": 1, "video_token_id": 0, "vision_config": VISION}, ["paddleocr_vl_text"]),
    "got_ocr2": ("GotOcr2", {"image_token_index": 1, "vision_config": {**VISION, "output_channels": 8, "mlp_dim": 16, "global_attn_indexes": [0],
                                                                       "window_size": 2}}, ["qwen2"]),
    "granite4_vision": ("Granite4Vision", {"image_token_index": 1, "vision_config": {**SIGLIP, "hidden_size": 64}, "downsample_rate": "1/2",
                                           "deepstack_layer_map": [[0, 0]], "spatial_target_layers": [1]}, ["granite4_vision_text"]),
    "granite_docling": ("GraniteDocling", {"image_token_id": 1, "pad_token_id": 0, "vision_config": {**VISION, "image_size": 112, "out_hidden_size": 40, "scale_factor": 2,
                                                                                  "deepstack_visual_indexes": [0]}}, ["granite_docling_text"]),
    "hyperclovax_vision_v2": ("HyperCLOVAXVisionV2", {"image_token_id": 1, "video_token_id": 0, "vision_config": {
        **GLM_VISION, "model_type": "qwen2_5_vl_vision", "fullatt_block_indexes": [0]}}, ["hyperclovax"]),
    "kimi_k25": ("Kimi_K25", {"image_token_id": 1, "video_token_id": 0, "projection_hidden_size": 16, "vision_config": VISION}, ["deepseek_v3"]),
    "lfm3_vl": ("Lfm3Vl", {"image_token_id": 1, "video_token_id": 0, "vision_config": {**VISION, "out_hidden_size": 40, "projector_hidden_size": 16}}, ["lfm3"]),
    "lighton_ocr": ("LightOnOcr", {"image_token_id": 1, "vision_config": {**VISION, "model_type": "pixtral", "head_dim": 8}}, ["qwen3"]),
    "minicpmv4_6": ("MiniCPMV4_6", {"image_token_id": 1, "video_token_id": 0, "insert_layer_id": 0, "vision_config": {**VISION, "insert_layer_id": 0}},
                    ["qwen3_5_text"]),
    "minicpmv4_7": ("MiniCPMV4_7", {"image_token_id": 1, "video_token_id": 0, "insert_layer_id": 0, "vision_config": {**VISION, "insert_layer_id": 0}},
                    ["qwen3_5_text"]),
    "qwen2_5_omni_thinker": ("Qwen2_5OmniThinker", {
        "image_token_index": 1, "video_token_index": 0, "audio_token_index": 2, "vision_config": {**GLM_VISION, "fullatt_block_indexes": [0]},
        "audio_config": OMNI_AUDIO}, ["qwen2_5_omni_text"]),
    "qwen3_omni_moe_thinker": ("Qwen3OmniMoeThinker", {
        "image_token_id": 1, "video_token_id": 0, "audio_token_id": 2, "vision_config": {**GLM_VISION, "deepstack_visual_indexes": [0]},
        "audio_config": {**OMNI_AUDIO, "downsample_hidden_size": 8}}, ["qwen3_omni_moe_text"]),
    "qianfan_ocr": ("QianfanOCR", {"image_token_id": 1, "vision_config": {**VISION, "image_size": [28, 28], "patch_size": [14, 14]}}, ["qwen3"]),
    "glm4v_moe": ("Glm4vMoe", {"image_token_id": 1, "vision_config": GLM_VISION}, ["glm4v_moe_text"]),
    "idefics3": ("Idefics3", {"image_token_id": 1, "vision_config": VISION, "scale_factor": 2}, ["llama"]),
    "smolvlm": ("SmolVLM", {"image_token_id": 1, "vision_config": VISION, "scale_factor": 2}, ["llama"]),
    "internvl": ("InternVL", {"image_token_id": 1, "vision_config": {**VISION, "image_size": [28, 28], "patch_size": [14, 14]}},
                 ["qwen2", "qwen3", "qwen3_moe", "llama"]),
    "lfm2_vl": ("Lfm2Vl", {"image_token_id": 1, "vision_config": {**SIGLIP, "model_type": "siglip2_vision_model", "num_patches": 4}}, ["lfm2"]),
    "llava": ("Llava", {"image_token_index": 1, "vision_config": CLIP}, ["llama", "mistral", "qwen2"]),
    "llava_next": ("LlavaNext", {"image_token_index": 1, "vision_config": CLIP}, ["llama", "mistral", "qwen2"]),
    "llava_onevision": ("LlavaOnevision", {"image_token_index": 1, "vision_config": SIGLIP}, ["qwen2"]),
    "ovis2": ("Ovis2", {"image_token_id": 1, "vocab_size": 131, "hidden_size": 40, "vision_config": {**VISION, "vocab_size": 16, "hidden_stride": 2}},
              ["qwen2"]),
    "muse_glimmer": ("MuseGlimmer", {"image_token_id": 200092, "video_token_id": 200091, "out_hidden_size": 64, "projector_hidden_size": 16,
                                     "vision_config": {**VISION, "pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16}}, ["muse_glimmer_text"]),
    "perception_lm": ("PerceptionLM", {"image_token_id": 1, "vision_config": {**CLIP, "model_args": {"embed_dim": 16}}}, ["llama"]),
    **families_newest.WHOLES,
    "vipllava": ("VipLlava", {"image_token_index": 1, "vision_config": CLIP, "vision_feature_layers": [0, 0, 0, 0, 0]}, ["llama"]),
}
TIED = ("aya_vision", "cohere2_vision", "got_ocr2", "granite_docling", "hyperclovax_vision_v2", "internvl", "kimi_k25", "lfm2_vl", "lfm3_vl", "lighton_ocr", "ovis2", "paddleocr_vl")  # where nobody says otherwise


def has(config):
    return config["model_type"] in WHOLES


def of(config):
    """The language part, or the whole where it is none of these."""
    return config["text_config"] if has(config) else config


# What save_pretrained writes otherwise than the Hub has it, and loads: where names of layers for images are like those of others.
HUB = {"kimi_k25": [("language_model.model.blocks.", "language_model.model.layers.")],
       "qianfan_ocr": [("language_model.model.encoder.layers.", "language_model.model.layers.")],
       "hyperclovax_vision_v2": [("model.language_model.", "model.language_model.model."), ("language_model.model.lm_head.", "language_model.lm_head.")]}


def on_hub(config, tensors):
    """Names of the language part's tensors as files on the Hub have them."""
    def name_of(name):
        for saved, wanted in HUB.get(config["model_type"], []):
            name = name.replace(saved, wanted)
        return name
    return {name_of(name): t for name, t in tensors.items()}


def is_language(name):
    """Whether a tensor of that name, in a file, is the language part's."""
    return any(k in name for k in ("language_model", "text_model", "lm_head")) or re.match(r"(thinker\.)?model\.(layers|embed_tokens|norm)\.", name)


def language(model):
    """The decoder of a whole model."""
    return getattr(model.model, "language_model", None) or model.model.text_model


def factor(config):
    """What logits are multiplied by: Cohere's, which its models of text apply and the wholes of transformers 5 leave out."""
    part = getattr(config, "text_config", config)
    return part.logit_scale if part is not config and part.model_type == "cohere2" else 1


def whole(model_type, part, **changes):
    name, fields, _ = WHOLES[model_type]
    tied = {} if model_type in TIED else {"tie_word_embeddings": False}
    config = {"architectures": [name + "ForConditionalGeneration"], "model_type": model_type, "torch_dtype": "float32", "eos_token_id": 2,
              "transformers_version": "4.53.0", **fields, **tied, "text_config": part, **changes}
    return {k: v for k, v in config.items() if v is not MISSING}


def sparse(part):
    """As many fields left out as a small model can do without."""
    width = SPARSE_WIDTH.get(part, 64)
    return {"model_type": part, "vocab_size": 131, "hidden_size": width, "intermediate_size": 20, **SPARSE[part],
            **({"moe_intermediate_size": 4} if part == "glm4v_moe_text" else {}), **({} if part == "llama" else {"max_position_embeddings": 128})}


def odd(part):
    sizes = {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 69, "vocab_size": 97}
    if part in ("glm4v_moe_text", "qwen3_moe", "deepseek_v3", "qwen3_omni_moe_text"):
        sizes["moe_intermediate_size"] = 21
    if part == "qwen2_5_omni_text":
        sizes.update(rope_scaling={"rope_type": "default", "type": "default", "mrope_section": [1, 2, 2]})
    if part == "paddleocr_vl_text":
        sizes.update(rope_scaling={"rope_type": "default", "mrope_section": [2, 2, 2]})
    if part == "glm_ocr_text":
        sizes.update(partial_rotary_factor=0.5, head_dim=20, rope_scaling={"rope_type": "default", "mrope_section": [2, 2, 1]})
    if part == "deepseek_v3":
        sizes.update(num_key_value_heads=6)
    if part == "granite_docling_text":
        sizes.update(hidden_size=60)
    if part == "qwen3_5_text":
        sizes.update(linear_num_key_heads=3, linear_num_value_heads=6)
    if part == "muse_glimmer_text":
        sizes.update(head_dim=18)
    if part == "ernie4_5_vl_moe_text":
        sizes.update(moe_intermediate_size=[21, 9])
    if part.startswith("glm4v"):
        sizes.update(partial_rotary_factor=0.8 if part == "glm4v_text" else 0.5)
        sizes.update(rope_scaling={"rope_type": "default", "mrope_section": [1, 2, 1] if part == "glm4v_text" else [1, 1, 1]})
    sizes.update(families_newest.ODD.get(part, {}))
    return {k: v for k, v in {**TEXTS[part], **sizes}.items() if v is not MISSING}


def variants(model_type, part):
    """(name, config.json, save options) beyond the usual ones."""
    usual = TEXTS[part]
    if model_type in ("llava", "internvl", "aya_vision", "glm4v", "glm4v_moe", "lfm2_vl") and part in SPARSE:
        yield "sparse", whole(model_type, sparse(part)), {}
    if model_type in TIED:
        yield "untied", whole(model_type, {**usual, "tie_word_embeddings": False}, tie_word_embeddings=False), {}
        yield "head-kept", whole(model_type, usual, tie_word_embeddings=False), {"unsaid": "tie_word_embeddings"}
    if model_type in ("llava", "llava_onevision", "glm4v", "glm4v_moe"):
        yield "tied-part", whole(model_type, {**usual, "tie_word_embeddings": True}), {}
    if model_type == "perception_lm":
        yield "tied-part", whole(model_type, {**usual, "tie_word_embeddings": True}, tie_word_embeddings=MISSING), {}
    if model_type in TALKERS:
        yield "talks", whole(model_type, usual), {"talks": TALKERS[model_type]}
        yield "talks-tied", whole(model_type, usual, tie_word_embeddings=True), {"talks": TALKERS[model_type]}
    if model_type in ("idefics3", "smolvlm"):
        yield "older", whole(model_type, {**usual, **OLDER}), {}
        yield "tied", whole(model_type, usual, tie_word_embeddings=True), {"raw": True}
    if (model_type, part) == ("llava", "llama"):
        yield "few", whole(model_type, {**{k: v for k, v in usual.items() if LLAVA_TEXT.get(k) is not MISSING}, "architectures": ["LlamaForCausalLM"]}), {}
    if (model_type, part) == ("internvl", "qwen2"):
        yield "dynamic", whole(model_type, {**usual, "max_position_embeddings": 48, "rope_scaling": {
            "factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}}), {}
    if part == "lfm2":
        old = {k: v for k, v in {**usual, **families_recurrent.LFM2_OLD}.items() if v is not MISSING}
        yield "old", whole(model_type, old), {}
    if part == "glm4v_text":
        yield "rotates-whole", whole(model_type, {**{k: v for k, v in usual.items() if k != "partial_rotary_factor"}, "rope_scaling": {
            "rope_type": "default", "mrope_section": [2, 2, 2]}}), {}
    if part == "glm4v_moe_text":
        yield "partial-default", whole(model_type, {k: v for k, v in usual.items() if k not in ("partial_rotary_factor", "attention_bias")}), {}
        yield "groups", whole(model_type, {**usual, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3}), {}
    if part in families_newer.PARTS:
        for name, changes in families_newer.part_variants(part):
            yield name, whole(model_type, {k: v for k, v in {**usual, **changes}.items() if v is not MISSING}), {}
    if part in families_newest.PARTS:
        for name, changes in families_newest.part_variants(part):
            yield name, whole(model_type, {k: v for k, v in {**usual, **changes}.items() if v is not MISSING}), {}
    if (model_type, part) == ("llava_next", "llama"):
        yield "llama3", whole(model_type, {**usual, "rope_scaling": LLAMA3}), {}


# What wholes say of their parts' sizes.
WIDE = {"ovis2": {"vocab_size": 97, "hidden_size": 60},
        "granite_docling": {"vision_config": {**WHOLES["granite_docling"][1]["vision_config"], "out_hidden_size": 60}}}


def cases():
    """As families_cases.cases."""
    for model_type, (_, _, parts) in WHOLES.items():
        for part in parts:
            name = "%s/%s-" % (model_type, part)
            config = whole(model_type, TEXTS[part])
            wide = whole(model_type, odd(part), **WIDE.get(model_type, {}))
            yield name + "hub", part, config, {}
            if model_type != "ernie4_5_vl_moe":  # of which no file has them so
                yield name + "raw", part, config, {"raw": True}
            yield name + "bf16", part, {**config, "torch_dtype": "bfloat16"}, {"dtype": "bfloat16", "shards": 2}
            yield name + "odd", part, wide, {"ranks": 3}
            yield from ((name + n, part, c, s) for n, c, s in variants(model_type, part))
