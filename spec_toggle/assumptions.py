"""What the plugin requires of SGLang, beside what its imports and its hooks say by themselves."""

from __future__ import annotations

from importlib.resources import files

from spec_toggle import hooks
from spec_toggle.contract import Requirement, merged, uses_of_host
from spec_toggle.hooks import COMPONENTS, EAGLE_WORKER, REPORTER, SCHEDULER
from spec_toggle.support import REFUSALS


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


HOOKS = (*hooks.FLAG_HOOKS, *hooks.TOGGLE_HOOKS, *hooks.HTTP_HOOKS)
DRAFT_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"
MODEL_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
ENGINE = "sglang.srt.entrypoints.engine.Engine"
FUTURE_MAP = "sglang.srt.managers.overlap_utils.FutureMap"
PROCESSOR = f"{COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor"
SCHEDULE_BATCH = "sglang.srt.managers.schedule_batch"

LOADING = (
    Requirement(
        "sglang.launch_server",
        "plugins are loaded before arguments are parsed",
        contains=("load_plugins()\n    server_args = prepare_server_args",),
    ),
    Requirement(
        "sglang.cli.serve.serve", "sglang serve loads plugins", contains=("load_plugins()",)
    ),
    Requirement(
        f"{ENGINE}.__init__",
        "Engine loads plugins, and builds its arguments by an attribute that can be replaced",
        contains=("load_plugins()", "self.server_args_class(**kwargs)"),
    ),
    Requirement(
        "sglang.srt.managers.scheduler.run_scheduler_process",
        "every scheduler process loads plugins",
        contains=("load_plugins()",),
    ),
    Requirement(
        "sglang.srt.plugins",
        "the loader calls entry points of this group",
        contains=("'sglang.srt.plugins'",),
    ),
    Requirement(
        "sglang.srt.plugins.hook_registry.HookType",
        "the kinds of hooks",
        attributes=tuple(sorted({hook.kind for hook in HOOKS})),
    ),
    Requirement(
        "sglang.srt.plugins.hook_registry.HookRegistry._apply_target",
        "installs a hook over whatever is there",
        parameters=("target", "hooks"),
    ),
    Requirement(
        "sglang.srt.arg_groups.field_order.POSITIONAL_FIELD_ORDER",
        "server arguments that are refused; one that is renamed would pass unseen",
        contains=tuple(repr(refusal.field) for refusal in REFUSALS),
    ),
    Requirement(
        "sglang.srt.configs.model_config.ModelConfig",
        "targets that are refused",
        attributes=("hf_config", "model_is_mrope", "dtype"),
    ),
)

SCHEDULING = (
    Requirement(
        SCHEDULER,
        "the toggle is attached to its worker",
        attributes=_names(
            "model_worker metrics_reporter enable_overlap future_map waiting_queue "
            "max_running_requests"
        ),
    ),
    Requirement(
        f"{SCHEDULER}.run_batch",
        "the scheduler undoes the worker's edits of its batch, and passes what a round needs",
        contains=("self._forward_isolation(batch", "fwd_kwargs['on_publish']", "grammar_barrier"),
    ),
    Requirement(
        f"{SCHEDULER}._apply_war_barrier",
        "fences shared buffers on the event that a plain step leaves",
        contains=("self.model_worker.last_shared_read_runner", ".shared_read_done_event"),
    ),
    Requirement(
        f"{SCHEDULE_BATCH}.ScheduleBatch.prepare_for_decode",
        "a speculative batch reserves its KV slots ahead, and a plain step takes the first",
        contains=("spec_prepare_for_decode(self)",),
    ),
    Requirement(
        FUTURE_MAP, "decides whether the host waits for lengths", attributes=("needs_cpu_seq_lens",)
    ),
    Requirement(
        f"{FUTURE_MAP}.stash",
        "keeps what a payload leaves out: a plain step relays its token alone",
        contains=("and payload.topk_p is not None", "and payload.hidden_states is not None"),
    ),
    Requirement(
        f"{SCHEDULE_BATCH}.ScheduleBatch",
        "fields that a plain step and a draft-extend replace or read",
        attributes=_names(
            "spec_info spec_algorithm forward_mode input_ids out_cache_loc seq_lens "
            "seq_lens_cpu seq_lens_sum req_pool_indices req_pool_indices_cpu extend_lens "
            "prefix_lens extend_num_tokens extend_logprob_start_lens reqs device has_grammar "
            "return_logprob enable_overlap sampling_info"
        ),
    ),
    Requirement(
        f"{SCHEDULE_BATCH}.Req",
        "plain steps are taken out of a request's statistics",
        attributes=_names(
            "spec_verify_ct spec_correct_drafts_histogram is_retracted finished sampling_params "
            "output_ids"
        ),
    ),
    Requirement(
        "sglang.srt.sampling.sampling_params.SamplingParams",
        "tokens past a request's last are not counted",
        attributes=("max_new_tokens",),
    ),
)

FORWARDING = (
    Requirement(
        EAGLE_WORKER,
        "what the plain step and the draft sync reach",
        attributes=_names(
            "target_worker draft_worker req_to_token_pool device topk draft_parallel_layout "
            "last_shared_read_runner"
        ),
    ),
    Requirement(
        DRAFT_WORKER,
        "what the draft sync reaches",
        attributes=_names(
            "draft_runner parallel_layout cuda_graph_runner_for_draft_extend "
            "speculative_num_draft_tokens"
        ),
    ),
    Requirement(
        f"{DRAFT_WORKER}._draft_extend_for_decode",
        "its width is that of the draft worker, and its input the batch and the result",
        parameters=("batch", "batch_result"),
        contains=(
            "self.speculative_num_draft_tokens",
            "batch_result.next_token_ids",
            "batch_result.accept_lens",
            "batch_result.logits_output.hidden_states",
            "batch_result.next_draft_input",
        ),
    ),
    Requirement(
        f"{DRAFT_WORKER}._draft_extend_for_prefill",
        "a prefill that plain steps follow writes the draft's KV only",
        parameters=("batch", "target_hidden_states", "next_token_ids", "mm_input_embeds"),
    ),
    Requirement(
        f"{EAGLE_WORKER}._forward_prefill_batch",
        "looks the draft's prefill up on the draft worker in every call",
        contains=("self.draft_worker._draft_extend_for_prefill(",),
    ),
    Requirement(
        "sglang.srt.layers.radix_attention.RadixAttention.forward",
        "the draft's keys and values reach the attention backend of the forward context",
        contains=("get_attn_backend().forward(q, k, v, self, forward_batch",),
    ),
    Requirement(
        "sglang.srt.models.llama_eagle3.LlamaModel.forward",
        "the draft reads the target's hidden states from the speculative input",
        contains=("forward_batch.spec_info.hidden_states",),
    ),
    Requirement(
        "sglang.srt.mem_cache.allocator.token.TokenToKVPoolAllocator.clear",
        "KV slot 0 is nobody's: draft KV of slots that another request has taken goes there",
        contains=("torch.arange(1, self.size + 1",),
    ),
    Requirement(
        "sglang.srt.mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.clear",
        "KV page 0 is nobody's",
        contains=("torch.arange(1, self.num_pages + 1",),
    ),
    Requirement(
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        "forwards without sampling, and returns the aux hidden states",
        parameters=("batch", "forward_batch", "is_verify"),
    ),
    Requirement(
        f"{MODEL_RUNNER}.sample",
        "samples a plain step",
        parameters=("logits_output", "forward_batch"),
    ),
    Requirement(
        MODEL_RUNNER,
        "what native decode graphs replace, and the event that fences shared buffers",
        attributes=_names(
            "spec_algorithm attn_backend decode_cuda_graph_runner init_new_workspace device "
            "gpu_id model_config forward shared_read_done_event"
        ),
    ),
    Requirement(
        f"{MODEL_RUNNER}._get_attention_backend",
        "builds the attention state of native decode graphs",
        parameters=("init_new_workspace",),
    ),
    Requirement(
        "sglang.srt.model_executor.runner.DecodeCudaGraphRunner",
        "captures native decode graphs with aux hidden states as an output",
        parameters=("model_runner", "attn_backend"),
        attributes=("return_hidden_states_mode", "capture_bs"),
        contains=("model_runner.spec_algorithm", "self.return_hidden_states_mode"),
    ),
    Requirement(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch",
        "fields that a draft-extend sets",
        attributes=("return_logprob", "extend_seq_lens_cpu"),
    ),
    Requirement(
        "sglang.srt.model_executor.forward_batch_info.ForwardMode",
        "plain steps are decode batches",
        attributes=("is_decode",),
    ),
    Requirement(
        "sglang.srt.layers.logits_processor.LogitsProcessorOutput",
        "what a plain step reads of its forward",
        attributes=("next_token_logits", "next_token_logprobs", "hidden_states"),
    ),
    Requirement(
        "sglang.srt.speculative.eagle_info.EagleDraftInput",
        "the state that a round starts from",
        attributes=("bonus_tokens", "topk_p", "topk_index", "hidden_states", "future_indices"),
    ),
)

ACCOUNTING = (
    Requirement(
        PROCESSOR,
        "where plain steps are told from rounds",
        attributes=("model_worker", "metrics_reporter"),
    ),
    Requirement(
        f"{PROCESSOR}._resolve_spec_v2_tokens",
        "counts a verify for each result, and reads accept lengths",
        contains=("result.accept_lens", "req.spec_verify_ct += 1"),
    ),
    Requirement(
        f"{COMPONENTS}.batch_result_processor._get_speculative_output_stride",
        "a plain step reports one token per request",
        contains=("result.speculative_num_draft_tokens",),
    ),
    Requirement(
        REPORTER,
        "rounds of a logging interval",
        attributes=("metrics_collector", "spec_num_forward_ct", "spec_total_num_forward_ct"),
    ),
    Requirement(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
        "what a client's accept length is made of",
        contains=(
            "recv_obj.spec_verify_ct[i]",
            "recv_obj.spec_num_correct_drafts[i]",
            "'spec_accept_length'",
        ),
    ),
)


def requirements() -> list[Requirement]:
    """All that must hold, one entry for each place: hooks, uses, and assumptions."""
    hooked = [Requirement(h.target, h.why, h.kind.lower(), h.parameters) for h in HOOKS]
    uses = []
    for entry in sorted(files("spec_toggle").iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".py"):
            uses += uses_of_host(entry.name, entry.read_text(encoding="utf-8"))
    return merged((*hooked, *uses, *LOADING, *SCHEDULING, *FORWARDING, *ACCOUNTING))
