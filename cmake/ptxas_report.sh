#!/bin/sh
# Runs nvcc, the arguments, and keeps beside the object what ptxas says of its kernels, as
# OBJECT.ptxas, which tests/cuda/resources.py reads. All else on stderr goes on to the console.
# Behind --keep-ptx it also keeps what ptxas was given, as OBJECT.sm_90.ptx and so on, which
# tests/ptx runs. Tests alone ask for that: ccache would compile anew each time.
keep=
[ "$1" = --keep-ptx ] && keep=yes && shift
object= previous=
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"

rm -rf "$object.ptxas" "$object".*.ptx "$object.kept"
if [ $keep ]; then
  mkdir "$object.kept" && set -- "$@" --keep --keep-dir "$object.kept"
fi
"$@" 2>"$object.said"
status=$?
# For one architecture nvcc leaves it out of the name; the text has it.
for ptx in "$object.kept"/*.ptx; do
  [ -f "$ptx" ] && mv "$ptx" "$object.$(sed -n 's/^\.target \([a-z0-9_]*\).*/\1/p' "$ptx").ptx"
done
rm -rf "$object.kept"
report='^ptxas info|^ +[0-9]+ bytes stack frame,|^ +[0-9]+ bytes cumulative stack'
grep -Ev "$report" "$object.said" >&2
[ $status -ne 0 ] || grep -E "$report" "$object.said" >"$object.ptxas"
rm -f "$object.said"
exit $status
