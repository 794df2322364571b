#include "torch/communicator.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <functional>
#include <variant>

#include "fault/render.h"
#include "torch/bindings.h"

namespace ringkern::torch_ext {

TorchCommunicator::TorchCommunicator(std::shared_ptr<Store> store, std::string name, int rank,
                                     int ranks, double timeout_s, std::vector<int> numbers)
    : comm_(std::make_unique<Communicator>(std::move(store), std::move(name), rank, ranks,
                                           milliseconds(timeout_s),
                                           RankNames{std::move(numbers)})) {}

TorchCommunicator::~TorchCommunicator() {
  if (on_end_) on_end_(this);
  const WithoutGil no_gil;
  if (!comm_->in_callback()) {
    comm_->close();
    return;
  }
  // A callback held the last reference, and its thread cannot wait for itself.
  std::thread([devices = std::move(devices_), comm = std::move(comm_)]() mutable {
    comm.reset();
  }).detach();
}

at::Tensor TorchCommunicator::sum_of(const at::Tensor& x, const WayRequest& request,
                                     RowNorm* norm) {
  const Reduction sum = reduction_for({Op::sum}, check_tensor(x, "x"), ranks());
  const at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor out = at::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::Contiguous));
  if (all_reduce_now(out, x, Op::sum, request)) return out;
  Prepared task = prepare(Collective::all_reduce, out, x, sum, x.numel());
  task.task.norm = norm;
  submit_one(c10d::OpType::ALLREDUCE, out, std::move(task), request, /*async_op=*/false);
  return out;
}

WayTables::Lists TorchCommunicator::table(const std::string& device) {
  const auto type = c10::Device(device).type();
  std::lock_guard lock(devices_mutex_);
  for (const auto& [where, made] : devices_)
    if (where.type() == type) return lists_of(comm_->ways_on(made));
  return lists_of(tables_.of(type));
}

std::pair<std::string, std::vector<std::string>> TorchCommunicator::shared_memory() {
  std::lock_guard lock(devices_mutex_);
  for (const auto& [where, made] : devices_)
    if (where.is_cuda()) {
      const SharedMemory memory = comm_->memory_on(made);
      return {memory.device, memory.host};
    }
  return {};
}

WorkPtr TorchCommunicator::submit(Call call, const CallOptions& options) {
  return interruptible(&callers_, aborter(),
                       [&] { return submit_uninterrupted(std::move(call), options); });
}

void TorchCommunicator::run(c10::Device on, Task task, const WayRequest& request,
                            Milliseconds timeout) {
  apply_request(task, request, on.type());
  const Device& device = device_on(on);
  task.timeout = timeout;
  task.stream = current_stream(on);
  start(device, task);
}

void TorchCommunicator::connect_on(c10::Device on) {
  const Device& device = device_on(on);
  interruptible(&callers_, aborter(), [&] {
    const Callers::Scope no_gil(callers_);
    comm_->connect_on(device);
  });
}

Regroup::Round TorchCommunicator::gather(const std::vector<int>& excluded, double patience_s,
                                         const Regroup::Propose& propose) {
  return interruptible(&callers_, aborter(), [&] {
    const Callers::Scope no_gil(callers_);
    return comm_->gather(excluded, milliseconds(patience_s), propose);
  });
}

bool TorchCommunicator::conclude(const Regroup::Round& round, bool joined, double patience_s) {
  return interruptible(&callers_, aborter(), [&] {
    const Callers::Scope no_gil(callers_);
    return comm_->conclude(round, joined, milliseconds(patience_s));
  });
}

uint64_t TorchCommunicator::start(const Device& device, Task& task) {
  if (const auto number = comm_->run_now(device, task)) return *number;
  if (task.stream != nullptr && !comm_->connected(device)) check_not_captured(task.stream);
  return comm_->run(device, task);
}

static std::vector<Task> tasks_of(const Call& call) {
  std::vector<Task> tasks;
  for (const Prepared& task : call.tasks) tasks.push_back(task.task);
  return tasks;
}

WorkPtr TorchCommunicator::submit_uninterrupted(Call call, const CallOptions& options) {
  const Device& device = device_on(call.device);
  for (Prepared& prepared : call.tasks) {
    apply_request(prepared.task, options.request, call.device.type());
    prepared.task.timeout = options.timeout;
  }
  const Callers::Scope no_gil(callers_);
  const auto tasks = tasks_of(call);
  const c10::Device on = call.device;
  if (on.is_cpu() && options.async_op) {
    auto work = c10::make_intrusive<CallWork>(std::move(call), int(tasks.size()));
    work->abort_by(aborter());
    for (const Task& task : tasks)
      comm_->run_async(device, task, [work](std::exception_ptr e) { work->end_part(e); });
    return work;
  }
  const c10::OptionalStreamGuard stream_guard(options.stream);
  const c10::OptionalDeviceGuard device_guard(on.is_cpu() ? std::nullopt : std::optional(on));
  c10::intrusive_ptr<CallWork> work;
  if (options.has_work) work = c10::make_intrusive<CallWork>(std::move(call), 1);
  uint64_t last = 0;
  bool begun = false;
  for (Task task : tasks) {
    task.stream = current_stream(on);
    try {
      if (const uint64_t number = start(device, task)) last = number;
    } catch (const std::exception& e) {
      // If the user repeated the call, it would meet the next calls of the other ranks.
      if (begun)
        comm_->abort(std::string("a call of several tensors was made in part: ") + e.what());
      throw;
    }
    begun = true;
  }
  if (on.is_cpu()) cpu_ = &device;
  if (!work) {
    call.finish();
    return nullptr;
  }
  if (last > 0) work->follow(comm_->enqueued_on(device), last);
  work->end_part(nullptr);
  return work;
}

const Device& TorchCommunicator::device_on(c10::Device device) {
  std::lock_guard lock(devices_mutex_);
  auto found = devices_.find(device);
  if (found == devices_.end()) {
    found = devices_
                .emplace(device, device_for(device, rank(), ranks(), comm_->timeout(), on_fault_,
                                            find_orders_, threads_))
                .first;
    found->second.ways = tables_.of(device.type());
  }
  return found->second;
}

// The methods that ringkern/hosts/search.py uses of a store.
static void bind_page_store(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<PageStore, std::shared_ptr<PageStore>>(m, "PageStore")
      .def("set", &PageStore::set, py::arg("key"), py::arg("value"), no_gil)
      .def(
          "get",
          [](PageStore& store, const std::string& key) {
            return py::bytes(store.find(key).value_or(""));
          },
          py::arg("key"))
      .def("add", &PageStore::add, py::arg("key"), py::arg("value"), no_gil)
      .def(
          "check",
          [](PageStore& store, const std::vector<std::string>& keys) {
            return std::ranges::all_of(keys, [&](const auto& k) { return !!store.find(k); });
          },
          py::arg("keys"), no_gil);
}

void bind_communicator(py::module_& m) {
  py::class_<Regroup::Round>(m, "Round")
      .def_readonly("members", &Regroup::Round::members)
      .def_property_readonly("address", [](const Regroup::Round& r) { return r.proposal.address; })
      .def_property_readonly("joiners", [](const Regroup::Round& r) { return r.proposal.joiners; })
      .def_property_readonly("processes",
                             [](const Regroup::Round& r) {
                               std::vector<std::pair<int64_t, uint64_t>> all;
                               for (const Process& p : r.processes)
                                 all.emplace_back(p.pid, p.started);
                               return all;
                             })
      .def_property_readonly("calls", [](const Regroup::Round& r) {
        std::vector<std::pair<uint64_t, uint64_t>> all;
        for (const Regroup::Calls& c : r.calls) all.emplace_back(c.completed, c.begun);
        return all;
      });
  bind_page_store(m);
  py::class_<TorchCommunicator, Runner, std::shared_ptr<TorchCommunicator>>(m, "Communicator")
      .def(py::init([](std::variant<std::shared_ptr<PageStore>, StorePtr> store, std::string name,
                       int rank, int size, double timeout_s) {
             std::shared_ptr<Store> in;
             if (auto* of_torch = std::get_if<StorePtr>(&store))
               in = std::make_shared<C10dStore>(std::move(*of_torch));
             else in = std::get<std::shared_ptr<PageStore>>(std::move(store));
             return std::make_unique<TorchCommunicator>(std::move(in), std::move(name), rank, size,
                                                        timeout_s);
           }),
           py::arg("store"), py::arg("name"), py::arg("rank"), py::arg("size"),
           py::arg("timeout_s"))
      .def_property_readonly("failed", &TorchCommunicator::failed)
      .def_property_readonly("devices", &TorchCommunicator::devices)
      .def(
          "connect",
          [](TorchCommunicator& c, const std::string& on) { c.connect_on(c10::Device(on)); },
          py::arg("device"))
      .def(
          "gather",
          [](TorchCommunicator& c, const std::vector<int>& excluded, double patience_s,
             const std::function<std::pair<std::string, int>(std::vector<int>)>& propose) {
            return c.gather(excluded, patience_s, [&](const std::vector<int>& members) {
              const auto [address, joiners] = propose(members);  // takes the GIL
              return Regroup::Proposal{address, joiners};
            });
          },
          py::arg("excluded"), py::arg("patience_s"), py::arg("propose"))
      .def("meeting_of", &TorchCommunicator::meeting_of, py::arg("round"))
      .def("conclude", &TorchCommunicator::conclude, py::arg("round"), py::arg("joined"),
           py::arg("patience_s"));
  m.def("this_process", [] {
    const Process mine = this_process();
    return std::pair(mine.pid, mine.started);
  });
  m.def(
      "find_gone",
      [](const RosterParts& roster, const std::function<std::string()>& left) {
        const auto gone = roster_of(roster).find_gone(left);
        return gone ? std::optional(std::pair(int(gone->rank), text_of(*gone))) : std::nullopt;
      },
      py::arg("roster"), py::arg("left"));
}

}  // namespace ringkern::torch_ext
