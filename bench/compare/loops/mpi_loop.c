// MPI_Allreduce in place, timed call by call. MPI has been initialised by who loads this.
#include <mpi.h>

#include "timing.h"

// `type`: the handle of MPI's datatype. Returns MPI's error.
int time_all_reduce(void** tensors, int places, int first, int64_t count, intptr_t type,
                    int64_t calls, int64_t* ns) {
  int error = MPI_SUCCESS;
  for (int64_t i = 0; i < calls && error == MPI_SUCCESS; ++i) {
    void* tensor = tensors[(first + i) % places];
    const int64_t start = now_ns();
    error = MPI_Allreduce(MPI_IN_PLACE, tensor, (int)count, (MPI_Datatype)type, MPI_SUM,
                          MPI_COMM_WORLD);
    ns[i] = now_ns() - start;
  }
  return error;
}
