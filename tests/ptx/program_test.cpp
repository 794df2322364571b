// Texts that the parser and the decoder take, and those that they refuse by name; and the
// instructions whose result does not follow from their name.
#include "ptx/program.h"
#include "check.h"
#include "simt/machine.h"

using namespace ptx;

namespace {

// A kernel with one argument, a place for results.
std::string kernel(const std::string& body) {
  return ".visible .entry k(\n.param .u64 k_param_0\n)\n.maxntid 32, 1, 1\n{\n"
         ".reg .pred %p<4>;\n.reg .b16 %rs<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n"
         "ld.param.u64 %rd1, [k_param_0];\n" +
         body + "\nret;\n}\n";
}
Program program(const std::string& body) { return Program(parse_entry(kernel(body), 1)); }

// The 8 bytes that a thread leaves at %rd1.
uint64_t result(const std::string& body) {
  const Program p = program(body);
  simt::Machine& m = simt::machine();
  m.reset({}, 1, 1, 32);
  std::byte* at = m.memory().add("the result", simt::Kind::own, 0, 8);
  simt::Launch launch{[&] { p.run(&at, sizeof at); }, {0}, 1, 32, nullptr, 0};
  m.start(launch);
  m.run();
  uint64_t found = 0;
  m.memory().read(at, &found, sizeof found);
  return found;
}
// The result of an operation, from %rd2.
uint64_t of_64(const std::string& body) {
  return result("mov.u32 %r1, %tid.x;\nsetp.ne.u32 %p1, %r1, 0;\n" + body +
                "\n@!%p1 st.global.u64 [%rd1], %rd2;");
}
uint64_t of_32(const std::string& body) { return of_64(body + "\ncvt.u64.u32 %rd2, %r2;"); }

TEST_CASE("what is not known is refused by name") {
  const auto refused = [](const std::string& body, const std::string& what) {
    CHECK_THROWS(Error, what, program(body));
  };
  refused("sin.approx.f32 %r1, %r2;", "line 11: the instruction 'sin.approx.f32' is not known");
  refused("ld.global.nc.u64 %rd2, [%rd1];", "'.nc' of 'ld.global.nc.u64' is not known");
  refused("ld.local.u64 %rd2, [%rd1];", "'.local' of 'ld.local.u64' is not known");
  refused("ld.u64 %rd2, [%rd1];", "the instruction 'ld.u64' is not known");
  refused("ld.release.sys.global.u64 %rd2, [%rd1];", "ld.release.sys.global.u64");
  refused("st.acquire.sys.global.u64 [%rd1], %rd2;", "st.acquire.sys.global.u64");
  refused("ld.global.v2.u64 %rd2, [%rd1];", "expected a vector of 2");
  refused("ld.global.v4.u64 {%rd1, %rd2, %rd3, %rd4}, [%rd1];", "more than 16 bytes");
  refused("atom.relaxed.gpu.global.exch.b32 %r1, [%rd1], 1;", "atom.relaxed.gpu.global.exch.b32");
  refused("fence.proxy.alias;", "fence.proxy.alias");
  refused("mov.u64 %rd2, %clock64;", "'%clock64' is not known");
  refused("mov.u32 %r1, %r9;", "'%r9' is not known");
  refused("add.s32 %r1, %r2;", "'add.s32' with 2 operands");
  refused("add.s32 %r9, %r1, %r2;", "'%r9' is not a register");
  refused("cvt.s8.s32 %r1, %r2;", "a byte in a register that has not 16 bits");
  refused("bra $L_1;", "no label '$L_1'");
  refused(".local .align 8 .b8 x[8];", "between operands of .local");
  CHECK_THROWS(Error, "the directive '.maxnreg'",
               parse_entry(".entry k()\n.maxnreg 32\n{\nret;\n}", 1));
  CHECK_THROWS(Error, "'.func' is not known", split_entries(".func f() { ret; }"));
}

TEST_CASE("what runs past its bounds is a failure that names the statement") {
  CHECK_THROWS(simt::Failure, "line 11 of the PTX, ld.param.u64, in k",
               result("ld.param.u64 %rd2, [k_param_0+8];"));
  CHECK_THROWS(simt::Failure, "shared",
               result(".shared .align 8 .b8 s[8];\n"
                      "mov.u32 %r1, s;\nld.shared.u64 %rd2, [%r1+8];"));
  const Program p = program("");
  CHECK_THROWS(Error, "k takes 8 bytes of arguments, and the host gives 16", p.run("", 16));
}

TEST_CASE("guards, scopes of registers, vectors and addresses") {
  CHECK_EQ(of_64("mov.u64 %rd2, 7;\n@%p1 mov.u64 %rd2, 8;"), 7u);
  CHECK_EQ(of_64("mov.u64 %rd2, 7;\n@!%p1 bra $L_1;\nmov.u64 %rd2, 8;\n$L_1:"), 7u);
  // A name within braces is another register.
  CHECK_EQ(of_64("mov.u64 %rd2, 1;\n{\n.reg .b64 %rd2;\nmov.u64 %rd2, 2;\n}"), 1u);
  CHECK_EQ(of_64("mov.u32 %r1, 3;\nmov.u32 %r2, 4;\nmov.b64 %rd2, {%r1, %r2};"), 4ull << 32 | 3);
  CHECK_EQ(of_32("mov.u64 %rd3, 17179869187;\nmov.b64 {%r1, %r2}, %rd3;"), 4u);
  CHECK_EQ(of_32("mov.u32 %r2, %ntid.x;"), 32u);
}

TEST_CASE("results that do not follow from the name") {
  // A shift by as many bits as there are, or more.
  CHECK_EQ(of_32("mov.u32 %r1, 5;\nshl.b32 %r2, %r1, 32;"), 0u);
  CHECK_EQ(of_32("mov.u32 %r1, -5;\nshr.s32 %r2, %r1, 99;"), 0xFFFFFFFFu);
  CHECK_EQ(of_32("mov.u32 %r1, 5;\nshr.u32 %r2, %r1, 32;"), 0u);
  // Bytes of {4, 3, 2, 1}, {8, 7, 6, 5}; the last nibble repeats a sign.
  CHECK_EQ(of_32("mov.u32 %r1, 0x04030281;\nmov.u32 %r3, 0x08070605;\n"
                 "prmt.b32 %r2, %r1, %r3, 0x8471;"),
           0xFF050802u);
  CHECK_EQ(of_32("mov.u32 %r1, 12;\nmov.u32 %r3, 10;\nmov.u32 %r4, 1;\n"
                 "lop3.b32 %r2, %r1, %r3, %r4, 0x8E;"),
           (~12u & 10u) | (~12u & 1u) | (10u & 1u));
  CHECK_EQ(of_64("mov.u64 %rd3, 255;\nmov.u64 %rd4, 0;\nbfi.b64 %rd2, %rd3, %rd4, 4, 6;"),
           63u << 4);
  CHECK_EQ(of_64("mov.u64 %rd3, 0xF0;\nbfe.s64 %rd2, %rd3, 4, 4;"), ~0ull);
  CHECK_EQ(of_64("mov.u64 %rd3, 0xF0;\nbfe.u64 %rd2, %rd3, 4, 4;"), 15u);
  CHECK_EQ(of_32("mov.u32 %r1, 0x80000000;\nmov.u32 %r3, 1;\nshf.l.wrap.b32 %r2, %r1, %r3, 33;"),
           3u);
  CHECK_EQ(of_64("mov.u64 %rd3, -1;\nmul.hi.u64 %rd2, %rd3, %rd3;"), ~0ull - 1);
  CHECK_EQ(of_64("mov.u32 %r1, -2;\nmul.wide.s32 %rd2, %r1, 3;"), uint64_t(-6));
  CHECK_EQ(of_32("mov.u16 %rs1, 384;\ncvt.s16.s8 %rs2, %rs1;\ncvt.u32.u16 %r2, %rs2;"), 0xFF80u);
}

TEST_CASE("floats that C++ lacks") {
  // Half: 1 + 2^-11 is a tie, to even; NaN has one pattern; e4m3 has no infinity.
  CHECK_EQ(of_32("mov.u32 %r1, 0x3C003C01;\nmov.u32 %r3, 0x10001000;\nadd.rn.f16x2 %r2, %r1, %r3;"),
           0x3C003C02u);
  CHECK_EQ(of_32("mov.u32 %r1, 0x7C01FC00;\nmov.u32 %r3, 0x00007C00;\nadd.rn.f16x2 %r2, %r1, %r3;"),
           0x7FFF7FFFu);
  CHECK_EQ(of_32("mov.u32 %r1, 0x80000000;\nmov.u32 %r3, 0;\nmin.NaN.f16x2 %r2, %r1, %r3;"),
           0x80000000u);
  // bfloat16: 1 * 1 + 2^-8 is a tie, but not with 2^-20 more; that is rounded once.
  CHECK_EQ(of_32("mov.u32 %r1, 0x3F803F81;\nmov.u32 %r3, 0x3F803F80;\nmov.u32 %r4, 0x3B803B80;\n"
                 "fma.rn.bf16x2 %r2, %r1, %r3, %r4;"),
           0x3F803F82u);
  CHECK_EQ(of_32("mov.u32 %r1, 0x44000000;\nmov.u32 %r3, 0xC4000000;\n"
                 "cvt.rn.satfinite.e4m3x2.f32 %rs1, %r1, %r3;\ncvt.u32.u16 %r2, %rs1;"),
           0x7EFEu);
  CHECK_EQ(of_32("mov.u16 %rs1, 0x7F38;\ncvt.rn.f16x2.e4m3x2 %r2, %rs1;"), 0x7FFF3C00u);
}

}  // namespace
