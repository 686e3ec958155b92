"""What is required of releases whose scheduler hands its ``ScheduleBatch`` to the worker."""

from __future__ import annotations

import dataclasses

from spec_toggle.contract import SCHEDULE_BATCH, Requirement, names
from spec_toggle.hooks import (
    COMPONENTS,
    EAGLE_WORKER,
    REPORTER,
    SCHEDULE_BATCH_CLASS,
    SCHEDULER,
)
from spec_toggle.support import REFUSALS

DRAFT_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker"
MODEL_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
FUTURE_MAP = "sglang.srt.managers.overlap_utils.FutureMap"
PROCESSOR = f"{COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor"

_LOADING = (
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

_SCHEDULING = (
    Requirement(
        SCHEDULER,
        "reports are made by a part of its own",
        attributes=("metrics_reporter",),
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
        f"{SCHEDULE_BATCH_CLASS}.prepare_for_decode",
        "a speculative batch reserves its KV slots ahead, and a plain step takes the first",
        contains=("spec_prepare_for_decode(self)",),
    ),
    Requirement(
        "sglang.srt.speculative.spec_utils.spec_prepare_for_decode",
        "looks up in every call what reserves the slots",
        contains=("import eagle_prepare_for_decode",),
    ),
    Requirement(
        "sglang.srt.speculative.eagle_utils.eagle_prepare_for_decode",
        "asks how many slots a round needs, and takes none where every request has them",
        contains=("get_alloc_reserve_per_decode()", "alloc_for_spec_decode("),
    ),
    Requirement(
        "sglang.srt.mem_cache.allocation.alloc_for_spec_decode",
        "does nothing to the pool and the table when no slot is needed",
        contains=("if num_needed_tokens > 0:",),
    ),
    Requirement(
        "sglang.srt.mem_cache.allocator.base.BaseTokenToKVPoolAllocator.check_decode_capacity",
        "frees slots of the prefix cache and says whether there are enough",
        parameters=("num_tokens", "tree_cache", "requests", "spec_algorithm"),
    ),
    Requirement(
        FUTURE_MAP,
        "decides whether the host waits for lengths",
        attributes=("needs_cpu_seq_lens",),
    ),
    Requirement(
        f"{FUTURE_MAP}.stash",
        "keeps what a payload leaves out: a plain step relays its token alone",
        contains=("and payload.topk_p is not None", "and payload.hidden_states is not None"),
    ),
    Requirement(
        SCHEDULE_BATCH_CLASS,
        "fields that a plain step and a draft-extend replace or read",
        attributes=names(
            "spec_info spec_algorithm forward_mode input_ids out_cache_loc seq_lens "
            "seq_lens_cpu seq_lens_sum req_pool_indices req_pool_indices_cpu extend_lens "
            "prefix_lens extend_num_tokens extend_logprob_start_lens reqs device has_grammar "
            "return_logprob enable_overlap sampling_info"
        ),
    ),
)

_FORWARDING = (
    Requirement(
        EAGLE_WORKER,
        "the last reader of shared buffers, and the layout of the draft",
        attributes=names("draft_parallel_layout last_shared_read_runner"),
    ),
    Requirement(
        DRAFT_WORKER,
        "its process groups",
        attributes=("parallel_layout",),
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
        MODEL_RUNNER,
        "where graphs are held, and the event that fences shared buffers",
        attributes=names("decode_cuda_graph_runner shared_read_done_event"),
    ),
    Requirement(
        "sglang.srt.model_executor.forward_batch_info.ForwardBatch.init_new",
        "how much of the hidden states to keep is an argument",
        parameters=("capture_hidden_mode", "return_hidden_states_before_norm"),
    ),
    Requirement(
        "sglang.srt.managers.utils.GenerationBatchResult",
        "relays lengths beside the draft input, and keeps the forward's tensors alive",
        attributes=("new_seq_lens", "extra_keep_alive_refs"),
    ),
    Requirement(
        "sglang.srt.model_executor.runner.DecodeCudaGraphRunner",
        "captures native decode graphs with aux hidden states as an output",
        parameters=("model_runner", "attn_backend"),
        attributes=("return_hidden_states_mode", "capture_bs"),
        contains=("model_runner.spec_algorithm", "self.return_hidden_states_mode"),
    ),
)

_ACCOUNTING = (
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
)

SCHEDULE_BATCH_ASSUMPTIONS = tuple(
    dataclasses.replace(requirement, where=SCHEDULE_BATCH)
    for requirement in (*_LOADING, *_SCHEDULING, *_FORWARDING, *_ACCOUNTING)
)
