#include "bellows/nodes/launch_nodes.h"

#include "bellows/core/exit_code.h"
#include "bellows/nodes/meeting.h"

namespace bellows::nodes {

int launch(const launch::Options& options, int out, int err) {
  Meeting meeting(options);
  try {
    const int code = launch::launch(options, meeting, out, err);
    meeting.close(code, "");
    return code;
  } catch (const std::exception& error) {
    meeting.close(static_cast<int>(exit_code(error)), error.what());
    throw;
  }
}

}  // namespace bellows::nodes
