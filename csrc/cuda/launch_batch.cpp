// Launches of several launchers' messages as one.
#include <algorithm>

#include "cuda/device.h"
#include "cuda/launcher.h"

namespace ringkern {

void LaunchBatch::launch() {
  if (of.empty()) return;
  try {
    const cuda::OnDevice guard(of.front()->device_);
    cuda::launch_kernel(cuda::message_kernel(), unsigned(blocks), threads, &args, stream,
                        of.front()->attributes_);
    for (cuda::Launcher* each : of) each->note_launch(stream);
  } catch (...) {
    for (cuda::Launcher* each : of) each->abort();  // or the others wait for what was not launched
    throw;
  }
}

namespace cuda {

// Messages of a direction follow each other on the device, and not in a stream, as long as the
// waiting ones leave room on the device. So do those in a graph, which may be replayed.
bool Launcher::add_to(LaunchBatch& batch, MessageArgs args, int threads) {
  const int blocks = batch.blocks + args.plan.channels;
  const bool ended = progress().done >= added_, fits = batch.beside + blocks <= resident_ / 2;
  (void)order_.follow_last(batch.stream, /*blocks=*/0, ended || fits);  // those are in `fits`
  if (order_.capturing()) {
    args.seq = 0;
  } else {
    args.after = ended ? 0 : added_;
    args.last = &reinterpret_cast<SegmentTail*>(args.ranks[0].failed)->last;
    added_ = args.seq;
  }
  batch.args.messages[batch.of.size()] = args;
  batch.blocks = blocks;
  batch.threads = std::max(batch.threads, std::min(threads, kMostMessageThreads));
  batch.of.push_back(this);
  if (batch.at_once) batch.launch();
  return args.seq > 0;
}

void Launcher::note_launch(cudaStream_t stream) {
  const auto turn = order_.turn();
  order_.note_last(stream);
  if (aborted_) poison_others();  // by another thread, which may not have seen this launch
}

}  // namespace cuda
}  // namespace ringkern
