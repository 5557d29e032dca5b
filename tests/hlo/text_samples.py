"""HLO texts written by hand in the forms of several XLA versions; XLA's own reader accepts all of them."""

# What XLA printed in 2017..2021: operands with shapes, %, tiles and memory spaces, metadata, literals over many lines.
OLD = r"""HloModule cluster_0__XlaCompiledKernel_true_.42, is_scheduled=false, input_output_alias={ {0}: (1, {}, may-alias) }

%add_F32.7 (lhs.8: f32[], rhs.9: f32[]) -> f32[] {
  %lhs.8 = f32[] parameter(0)
  %rhs.9 = f32[] parameter(1)
  ROOT %add.10 = f32[] add(f32[] %lhs.8, f32[] %rhs.9)
}

%ge_F32.11 (lhs.12: f32[], rhs.13: f32[]) -> pred[] {
  %lhs.12 = f32[] parameter(0)
  %rhs.13 = f32[] parameter(1)
  ROOT %compare.14 = pred[] compare(f32[] %lhs.12, f32[] %rhs.13), direction=GE
}

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element((s32[], f32[8,4]{1,0}) %p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(s32[] %i, s32[] %one)
  %x = f32[8,4]{1,0} get-tuple-element((s32[], f32[8,4]{1,0}) %p), index=1
  ROOT %out = (s32[], f32[8,4]{1,0}) tuple(s32[] %next, f32[8,4]{1,0} %x)
}

%condition (q: (s32[], f32[8,4])) -> pred[] {
  %q = (s32[], f32[8,4]{1,0}) parameter(0)
  %j = s32[] get-tuple-element((s32[], f32[8,4]{1,0}) %q), index=0
  %ten = s32[] constant(10)
  ROOT %less = pred[] compare(s32[] %j, s32[] %ten), direction=LT
}

ENTRY %main.42 (images: f32[2,8,8,3], kernel: f32[3,3,3,4]) -> (s32[], f32[8,4]) {
  %images = f32[2,8,8,3]{3,2,1,0:T(8,128)} parameter(0), sharding={devices=[2,1,1,1]0,1}, metadata={op_name="a \"b\" \\"}
  %kernel = f32[3,3,3,4]{3,2,1,0:T(8,128)S(1)} parameter(1), parameter_replication={true}
  %conv = f32[2,4,8,4]{3,0,2,1:T(8,128)(2,1)} convolution(f32[2,8,8,3]{3,2,1,0:T(8,128)} %images, f32[3,3,3,4]{3,2,1,0:T(8,128)S(1)} %kernel), window={size=3x3 stride=2x1 pad=0_1x1_1 rhs_reversal=1x1}, dim_labels=b01f_01io->b01f, operand_precision={highest,highest}, metadata={op_type="Conv2D" op_name="net/conv{1}" source_file="/a/b.py" source_line=12}, backend_config="{\"flag\":\"}\"}"
  %zero = f32[] constant(0)
  %lowest = f32[] constant(-inf)
  %pool = f32[2,2,4,4]{3,2,1,0} reduce-window(f32[2,4,8,4]{3,0,2,1:T(8,128)(2,1)} %conv, f32[] %lowest), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=%add_F32.7
  %unpool = f32[2,4,8,4]{3,2,1,0} select-and-scatter(f32[2,4,8,4]{3,0,2,1:T(8,128)(2,1)} %conv, f32[2,2,4,4]{3,2,1,0} %pool, f32[] %zero), window={size=1x2x2x1 stride=1x2x2x1}, select=%ge_F32.11, scatter=%add_F32.7
  %sum = f32[4]{0} reduce(f32[2,4,8,4]{3,2,1,0} %unpool, f32[] %zero), dimensions={0,1,2}, to_apply=%add_F32.7
  %table = f32[2,2]{1,0} constant({ { 1, -2.5e-3 }, /*i0=1*/ { nan, inf } })
  %many = (f32[4]{0}, f32[4]{0}, f32[4]{0}, f32[4]{0}, f32[4]{0}, /*index=5*/f32[4]{0}) tuple(f32[4]{0} %sum, f32[4]{0} %sum, f32[4]{0} %sum, f32[4]{0} %sum, f32[4]{0} %sum, /*index=5*/f32[4]{0} %sum)
  %sixth = f32[4]{0} get-tuple-element((f32[4]{0}, f32[4]{0}, f32[4]{0}, f32[4]{0}, f32[4]{0}, /*index=5*/f32[4]{0}) %many), index=5
  %rows = f32[8,4]{1,0} broadcast(f32[4]{0} %sixth), dimensions={1}
  %rng = f32[4]{0} rng(f32[] %zero, f32[] %zero), distribution=rng_uniform
  %after = token[] after-all()
  %feed = ((f32[2]{0}), token[]) infeed(token[] %after), infeed_config="\n\003"
  %zero_s32 = s32[] constant(0)
  %init = (s32[], f32[8,4]{1,0}) tuple(s32[] %zero_s32, f32[8,4]{1,0} %rows)
  ROOT %while = (s32[], f32[8,4]{1,0}) while((s32[], f32[8,4]{1,0}) %init), condition=%condition, body=%body
}
"""

# What XLA prints in 2024..2026, and what its reader accepts besides: no shapes of operands, no %, JSON, dynamic sizes.
NEW = r"""// a comment
HloModule jit_step, entry_computation_layout={(bf16[16,32]{1,0}, s32[4]{0})->bf16[16,32]{1,0}}, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2]>}}, num_partitions=2

FileNames
1 "/home/user/step.py"

FunctionNames
1 "step.<locals>.<lambda>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=6 end_line=6 column=6 end_column=26}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}, execution_thread="main"

sin.branch { ROOT s = bf16[16,32]{1,0} parameter(0) }

cos.branch {
  d = bf16[16,32]{1,0} parameter(0)
  ROOT k = bf16[16,32]{1,0} cosine(d), result_accuracy={mode=highest}
}

compare {
  l = s32[] parameter(0)
  r = s32[] parameter(1)
  l2 = s32[] parameter(2)
  r2 = s32[] parameter(3)
  ROOT lt = pred[] compare(l, r), direction=LT
}

ENTRY main.1 {
  x = bf16[16,32] parameter(0), metadata={op_name="x" stack_frame_id=1}
  idx = s32[4]{0} parameter(1), sharding={replicated}, frontend_attributes={a="b, c=d",e={"f": [1, {"g": "}"}]}}
  zero = f32[] constant(0)
  batched = f32[4,16,8]{2,1,0} broadcast(zero), dimensions={}
  single = f32[5]{0} broadcast(zero), dimensions={}
  planes = f32[4,4,8,8]{3,2,1,0} broadcast(zero), dimensions={}
  filters = f32[6,2,3,3]{3,2,1,0} broadcast(zero), dimensions={}
  eight = f8e4m3fn[16,32]{1,0} convert(x)
  four = s4[16,32]{1,0:E(4)} convert(x)
  dot = f32[4,16,16]{2,1,0} dot(batched, batched), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={2}, algorithm=dot_bf16_bf16_f32
  gathered = bf16[4,32]{1,0} gather(x, idx), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,32}
  start = s32[] constant(3)
  part = bf16[2,8]{1,0} dynamic-slice(x, start, start), dynamic_slice_sizes={2,8}
  range = bf16[8,10]{1,0} slice(x), slice={[0:16:2], [1:11]}
  nothing = bf16[] constant(0)
  padded = bf16[9,17]{1,0} pad(range, nothing), padding=0_1x-2_3_1
  steps = s32[4,6]{1,0} iota(), iota_dimension=1
  sorted = (s32[4]{0}, s32[4]{0}) sort(idx, idx), dimensions={0}, is_stable=true, to_apply=compare
  turned = bf16[32,16]{0,1} transpose(x), dimensions={1,0}
  grouped = f32[4,6,6,6]{3,2,1,0} convolution(planes, filters), window={size=3x3}, dim_labels=bf01_oi01->bf01, feature_group_count=2
  call = bf16[16,32]{1,0} custom-call(x, turned), custom_call_target="Sharding", called_computations={sin.branch, cos.branch}, api_version=API_VERSION_TYPED_FFI, backend_config={"a": {"b": "{"}, "c": [1, 2]}
  bounded = s32[<=4]{0} parameter(2)
  number = s32[] get-dimension-size(bounded), dimensions={0}
  empty = () tuple()
  choice = bf16[16,32]{1,0} conditional(number, x, x), branch_computations={sin.branch, cos.branch}
  started = ((bf16[16,32]{1,0}), bf16[16,32]{1,0}, s32[]) custom-call-start(x), custom_call_target="host"
  done = bf16[16,32]{1,0} custom-call-done(started)
  reduced = bf16[16,32]{1,0} all-reduce(x), channel_id=1, replica_groups=[1,2]<=[2], use_global_device_ids=true, to_apply=add
  inline = f32[] reduce(single, zero), dimensions={0}, to_apply={
    e = f32[] parameter(0)
    f = f32[] parameter(1)
    ROOT g = f32[] maximum(e, f)
  }
  ROOT last = bf16[16,32]{1,0} add(x, choice), control-predecessors={done, reduced}
}
"""
