#!/bin/sh
# Runs nvcc, the arguments, and keeps beside the object what ptxas says of its kernels, as
# OBJECT.ptxas, which tests/cuda/resources.py reads. All else on stderr goes on to the console.
object= previous=
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"

rm -f "$object.ptxas"
"$@" 2>"$object.said"
status=$?
report='^ptxas info|^ +[0-9]+ bytes stack frame,|^ +[0-9]+ bytes cumulative stack'
grep -Ev "$report" "$object.said" >&2
[ $status -ne 0 ] || grep -E "$report" "$object.said" >"$object.ptxas"
rm -f "$object.said"
exit $status
