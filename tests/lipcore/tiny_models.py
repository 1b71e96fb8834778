"""Tiny models with random weights of every family of transformers, without a download."""

from __future__ import annotations

import copy
import functools

import torch
import transformers

SIZE = {"vocab_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8,
        "intermediate_size": 12, "max_position_embeddings": 16}  # fmt: skip
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = SIZE | {"num_key_value_heads": 1, "head_dim": 6} | ENDS  # head_dim ≠ d/h
IMAGE = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 2,
         "num_attention_heads": 2, "intermediate_size": 12}  # fmt: skip
SEQUENCES = {"vocab_size": 20, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 12,
             "decoder_ffn_dim": 12, "decoder_start_token_id": 1} | ENDS  # fmt: skip
ROPE = {"rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 4}
LLAMA3 = ROPE | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PARTIAL = {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}

#: Class of the config and what it takes, for each family.
CONFIGS = {
    "bert": ("BertConfig", SIZE),
    "roberta": ("RobertaConfig", SIZE),
    "electra": ("ElectraConfig", SIZE | {"embedding_size": 8}),
    "albert": ("AlbertConfig", SIZE | {"embedding_size": 8}),
    "distilbert": ("DistilBertConfig", {"vocab_size": 20, "dim": 8, "n_layers": 2, "n_heads": 2,
                                        "hidden_dim": 12, "max_position_embeddings": 16}),
    "modernbert": ("ModernBertConfig", SIZE | ENDS | {"cls_token_id": 1, "sep_token_id": 2,
                                                      "local_attention": 4}),
    "deberta-v2": ("DebertaV2Config", SIZE | {"relative_attention": True, "position_buckets": 4,
                                              "pos_att_type": "p2c|c2p", "share_att_key": True}),
    "vit": ("ViTConfig", IMAGE),
    "dinov2": ("Dinov2Config", {k: v for k, v in IMAGE.items() if k != "intermediate_size"}),
    "clip": ("CLIPConfig", {"text_config": SIZE | ENDS, "vision_config": IMAGE,
                            "projection_dim": 4}),
    "swin": ("SwinConfig", {"image_size": 8, "patch_size": 2, "embed_dim": 4, "depths": [2, 1],
                            "num_heads": [1, 2], "window_size": 2, "mlp_ratio": 1.0}),
    "whisper": ("WhisperConfig", SEQUENCES | {"num_mel_bins": 4, "max_source_positions": 5,
                                              "max_target_positions": 8}),
    "wav2vec2": ("Wav2Vec2Config", {
        "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 12, "conv_dim": (4, 4), "conv_stride": (2, 2), "conv_kernel": (4, 3),
        "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer"}),
    "t5": ("T5Config", {"vocab_size": 20, "d_model": 8, "d_kv": 3, "d_ff": 12, "num_layers": 1,
                        "num_heads": 2, "decoder_start_token_id": 0}),
    "bart": ("BartConfig", SEQUENCES | {"max_position_embeddings": 16}),
    "gpt2": ("GPT2Config", {"vocab_size": 20, "n_embd": 8, "n_layer": 2, "n_head": 2,
                            "n_positions": 16} | ENDS),
    "gpt-neo": ("GPTNeoConfig", {"vocab_size": 20, "hidden_size": 8, "num_layers": 2,
                                 "num_heads": 2, "intermediate_size": 12, "window_size": 2,
                                 "max_position_embeddings": 16,
                                 "attention_types": [[["global", "local"], 1]]} | ENDS),
    "gpt-neox": ("GPTNeoXConfig", SIZE | ENDS | {"rope_parameters": PARTIAL}),
    "opt": ("OPTConfig", {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "ffn_dim": 12,
                          "num_attention_heads": 2, "max_position_embeddings": 16,
                          "word_embed_proj_dim": 8} | ENDS),
    "bloom": ("BloomConfig", {"vocab_size": 20, "hidden_size": 8, "n_layer": 2, "n_head": 2}),
    "llama": ("LlamaConfig", GROUPED | {"rope_parameters": LLAMA3}),
    "llama-yarn": ("LlamaConfig", GROUPED | {"rope_parameters": ROPE | {"rope_type": "yarn"}}),
    "mistral": ("MistralConfig", GROUPED | {"sliding_window": 2}),
    "qwen2": ("Qwen2Config", GROUPED),
    "qwen3": ("Qwen3Config", GROUPED),
    "gemma2": ("Gemma2Config", GROUPED | {"sliding_window": 2, "query_pre_attn_scalar": 3,
                                          "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3TextConfig", GROUPED | {"sliding_window": 2, "query_pre_attn_scalar": 3}),
    "phi": ("PhiConfig", SIZE | ENDS),
    "gpt-oss": ("GptOssConfig", GROUPED | {"sliding_window": 2, "num_local_experts": 2,
                                           "num_experts_per_tok": 1}),
    "mpt": ("MptConfig", {"d_model": 8, "n_heads": 2, "n_layers": 2, "max_seq_len": 16,
                          "vocab_size": 20, "expansion_ratio": 1}),
    "falcon": ("FalconConfig", {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2,
                                "num_attention_heads": 2, "max_position_embeddings": 16,
                                "alibi": False} | ENDS),
}  # fmt: skip
#: Transformers has no fused attention for these.
EAGER_ONLY = {"deberta-v2", "gemma2", "gpt-neo", "gpt-oss", "bloom", "mpt", "t5"}
#: Attention modules that run, counted by hand.
RUNS = dict.fromkeys(CONFIGS, 2) | {"clip": 4, "swin": 3, "whisper": 1, "wav2vec2": 1, "t5": 3,
                                    "bart": 3}  # fmt: skip


def config_of(family: str):
    name, options = CONFIGS[family]
    return getattr(transformers, name)(**options)


def inputs_of(family: str) -> dict[str, torch.Tensor]:
    """Two sequences of five tokens, or what gives five tokens or so."""
    ids = {"input_ids": torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])}
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    images = {"pixel_values": draw(2, 3, 8, 8)}
    return {
        "vit": images,
        "dinov2": images,
        "swin": images,
        "clip": ids | images,
        "whisper": {"input_features": draw(2, 4, 10)},
        "wav2vec2": {"input_values": draw(2, 24)},
        "t5": ids | {"decoder_input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])},
        "bart": ids | {"decoder_input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])},
    }.get(family, ids)


def tiny_model(family: str, kernel: str = "eager") -> torch.nn.Module:
    """A copy of the family's model in float64; each is made once."""
    return copy.deepcopy(_made(family, kernel))


@functools.cache
def _made(family: str, kernel: str) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModel.from_config(config_of(family), attn_implementation=kernel)
        for parameter in model.parameters():  # so large that attention is far from uniform
            noise = torch.randn_like(parameter) / 2
            parameter.data = noise if parameter.ndim > 1 else parameter.data + noise / 2
    if family == "gpt-oss":
        model.set_experts_implementation("eager")  # PyTorch's grouped product has no float64
    model = model.encoder if family == "whisper" else model
    return model.double().eval()
