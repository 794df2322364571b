# csrc/cpu/simd.cpp is compiled once per instruction set; the CPU's is picked at run time.
#
# RK_ISA is the namespace of a copy and RK_ISA_NAME its name. RK_HAVE_AVX2 and RK_HAVE_AVX512 tell
# everybody else which copies there are. Sums must not depend on the machine, so no copy may fuse a
# multiplication with an addition (-ffp-contract=off, in ringkern_flags).
set(RK_ISAS baseline)
set(RK_ISA_FLAGS_baseline "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  list(APPEND RK_ISAS avx2 avx512 avx512bf16)
  set(RK_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
  set(RK_ISA_FLAGS_avx512 ${RK_ISA_FLAGS_avx2}
    -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  set(RK_ISA_FLAGS_avx512bf16 ${RK_ISA_FLAGS_avx512} -mavx512bf16)
  target_compile_definitions(ringkern_flags INTERFACE RK_HAVE_AVX2=1 RK_HAVE_AVX512=1)
endif()

foreach(isa IN LISTS RK_ISAS)
  add_library(ringkern_simd_${isa} OBJECT csrc/cpu/simd.cpp)
  target_link_libraries(ringkern_simd_${isa} PRIVATE ringkern_flags)
  target_compile_definitions(ringkern_simd_${isa} PRIVATE RK_ISA=${isa} RK_ISA_NAME="${isa}")
  target_compile_options(ringkern_simd_${isa} PRIVATE ${RK_ISA_FLAGS_${isa}}
    # GCC 12 finds fault with its own AVX-512 header.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:
      -Wno-maybe-uninitialized>)
  target_sources(ringkern_core PRIVATE $<TARGET_OBJECTS:ringkern_simd_${isa}>)
endforeach()
