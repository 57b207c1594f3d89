// CUDA graphs of launches.
#pragma once

#include <functional>

#include "module.h"

namespace rnncc {

inline bool is_captured(CUstream stream) {
  int status = 0;
  check_cuda(driver().cuStreamIsCapturing(stream, &status), "asking whether a graph is captured");
  return status != 0;
}

// A graph of all that `launches` puts into the stream that it is given. One call of the driver then puts all of it into
// any stream, as often as wanted. It captures a stream of its own, since torch's current stream may be one that cannot
// be captured. The object lives and dies on one thread's stack.
class LaunchGraph {
 public:
  LaunchGraph(int32_t device, const std::function<void(CUstream)>& launches) {
    static std::mutex mutex;
    static std::map<int32_t, CUstream> streams;
    const std::lock_guard<std::mutex> lock(mutex);
    CUstream& stream = streams[device];
    if (!stream) check_cuda(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "making a stream");
    check_cuda(driver().cuStreamBeginCapture_v2(stream, CU_CAPTURE_RELAXED), "beginning a graph");
    CUgraph graph = nullptr;
    try {
      launches(stream);
    } catch (...) {
      if (driver().cuStreamEndCapture(stream, &graph) == 0) driver().cuGraphDestroy(graph);
      throw;
    }
    check_cuda(driver().cuStreamEndCapture(stream, &graph), "ending a graph");
    const int made = driver().cuGraphInstantiateWithFlags(&graph_, graph, 0);
    driver().cuGraphDestroy(graph);
    check_cuda(made, "making a graph");
  }
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;
  // The driver itself frees a graph that still runs once it has ended.
  ~LaunchGraph() { driver().cuGraphExecDestroy(graph_); }

  void launch(CUstream stream) const { check_cuda(driver().cuGraphLaunch(graph_, stream), "launching a graph"); }

 private:
  const DuringCapture allowed_;
  CUgraphExec graph_ = nullptr;
};

}  // namespace rnncc
