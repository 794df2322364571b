// The sentences about faults, one a row: event, the class of its error, and the text.
// fault/render.cpp fills in each {name}; a part in [brackets] is left out if one of its names is
// empty.
#pragma once

// X(event, cause, text)
#define RK_EVENTS(X)                                                                              \
  X(abort, aborted, "aborted by {rank}: {evidence}")                                              \
  X(exception, failed, "{rank} failed[ in {call}]: {evidence}")                                   \
  X(wait_timeout, timed_out,                                                                      \
    "{call_over}: {reporter} {wait} and nothing came for {timeout} (timed out).[ Waiting for "    \
    "{person}, which {whereabouts}; {condition}.][ Per rank: {standings}.][ {unusable}]")         \
  X(late, none,                                                                                   \
    "group '{group}': {reporter} has waited {waited} in {call} for {person}, which "              \
    "{whereabouts}; {condition}. The call fails after {timeout} without progress.")               \
  X(wait_aborted, aborted, "{call_over}: {reporter} {wait} when the ring was aborted.")           \
  X(mismatch, mismatch,                                                                           \
    "seq={seq}: ranks disagree on {field}: {first} has {value} ({first_call}), {second} has "     \
    "{other_value} ({second_call}). Last calls of {first}: {first_calls}; of {second}: "          \
    "{second_calls}. All ranks must make the same calls in the same order, with tensors of the "  \
    "same size. {unusable}")                                                                      \
  X(left, peer_lost,                                                                              \
    "{person} closed its communicator, or its program ended normally, after {after}, and "        \
    "{reporter} made one more: {call}. Last calls of {rank}: {their_calls}. All ranks must "      \
    "make the same calls in the same order, with tensors of the same size. {unusable}")           \
  X(died_in_call, peer_lost,                                                                      \
    "{person} died ({how}) during {call}; {reporter} had been in it for {waited}. Last calls "    \
    "of {rank}: {their_calls}. The results of calls in progress are undefined. {unusable}")       \
  X(died_between_calls, peer_lost,                                                                \
    "{person} died ({how}); {reporter} was in no call. Last calls of {rank}: {their_calls}. "     \
    "The results of calls in progress are undefined. {unusable}")                                 \
  X(died_early, peer_lost,                                                                        \
    "{person} died before its first call ({how}). See the log of that rank")                      \
  X(left_early, peer_lost,                                                                        \
    "{person} closed its communicator, or its program ended normally, before its first call")     \
  X(cannot_join, failed, "{reporter} could not join the ring: {evidence}")                        \
  X(lost_joining, peer_lost, "{reporter} could not join the ring: {evidence}")                    \
  X(unreachable, failed, "{reporter} cannot be reached by others any more: {evidence}")           \
  X(deaf, failed, "{reporter} cannot accept connections: {evidence}")                             \
  X(cannot_exchange, failed, "{reporter} cannot exchange messages with {rank}: {evidence}")       \
  X(quoted_loss, peer_lost, "{evidence}")                                                         \
  X(quoted_timeout, timed_out, "{evidence}")                                                      \
  X(quoted_mismatch, mismatch, "{evidence}")                                                      \
  X(quoted_abort, aborted, "{evidence}")                                                          \
  X(quoted_failure, failed, "{evidence}")                                                         \
  X(here, none, "{reporter} was in {call}")                                                       \
  X(idle, none, "{reporter} was in no call")                                                      \
  X(hosts_late, none, "{here} has waited for other hosts for {timeout}")                          \
  X(hosts_mismatch, mismatch,                                                                     \
    "ranks of one group make different calls: {rank} makes {their_call}, and {reporter} makes "   \
    "{call}. All ranks must make the same calls in the same order, with tensors of the same "     \
    "size.")                                                                                      \
  X(host_silent, peer_lost,                                                                       \
    "{here} lost the connection to {hosts}: no rank there answers. They have ended, or the "      \
    "network is cut. The engine says: {evidence}")                                                \
  X(host_unreachable, peer_lost,                                                                  \
    "{here} lost the connection to {hosts}, though all its ranks answer through the store. The "  \
    "engine says: {evidence}")                                                                    \
  X(network_cut, peer_lost,                                                                       \
    "{here} lost the connection to {hosts}, and the store through which the ranks met does not "  \
    "answer: its process has ended or is busy, or the network is cut. The engine says: "          \
    "{evidence}")                                                                                 \
  X(host_absent, timed_out,                                                                       \
    "{here} waited for {timeout} (timed out) for {hosts}: no rank there is in a call of this "    \
    "group, or the network is cut[; {store}]")                                                    \
  X(host_behind, timed_out,                                                                       \
    "{here} waited for {timeout} (timed out) for {hosts}, which answers from an earlier "         \
    "call[; {store}]")                                                                            \
  X(network_slow, timed_out,                                                                      \
    "{here} waited for {timeout} (timed out) for other hosts, which all answer: the network "     \
    "is slow, or loses data of the engine")                                                       \
  X(no_engine, failed, "{rank} has no engine between the hosts: {evidence}")                      \
  X(message_timeout, timed_out,                                                                   \
    "{reporter} {message} and nothing {moved} for {timeout} (timed out). {question}[ "            \
    "{arrived}] {messages_unusable}.")                                                            \
  X(peer_absent, timed_out,                                                                       \
    "{reporter} {message}, and {peer} did not come within {timeout} (timed out). Is it "          \
    "running, and has it made this group? {messages_unusable}.")                                  \
  X(peer_gone, peer_lost,                                                                         \
    "{reporter} {message}, and {peer} has ended or left the group. Look for the first error in "  \
    "the logs of the ranks")                                                                      \
  X(all_gone, peer_lost, "{reporter} {message}, and all others have ended or left the group")     \
  X(message_mismatch, mismatch,                                                                   \
    "{rank} sent {their_data} to {reporter}[ ({tag})], which expects {data}: sender and "         \
    "receiver of a message must agree on its size and dtype")                                     \
  X(message_aborted, aborted,                                                                     \
    "{reporter} {message} when the messages of its group were aborted, here or by another "       \
    "rank. They are unusable now; make a new group. The reason: ")                                \
  X(messages_closed, failed, "{reporter} closed its messages before they had finished")           \
  X(link_damaged, failed, "the memory that {reporter} shares with {rank} is damaged")             \
  X(header_damaged, failed,                                                                       \
    "the header of a message from {rank} to {reporter} is damaged ({tag}, {their_data}, "         \
    "protocol {evidence})")                                                                       \
  X(no_room_aside, failed,                                                                        \
    "{reporter} has no memory left to keep a message of {their_data} from {rank} ({tag}) until "  \
    "it is received. Receive messages in the order in which they are sent")                       \
  X(engine_late, timed_out,                                                                       \
    "{reporter} {message}[, and nothing {moved} for {timeout} (timed out). "                      \
    "{messages_unusable}]. The engine between the hosts says: {evidence}")                        \
  X(engine_waits, none, "{reporter} {message}")                                                   \
  X(engine_ended, none, "{reporter} {message} when the messages of its group ended: ")            \
  X(engine_lost, peer_lost,                                                                       \
    "{reporter} {message}. The engine between the hosts says: {evidence}")                        \
  X(engine_aborted, aborted,                                                                      \
    "{reporter} {message}. The engine between the hosts says: {evidence}")                        \
  X(unsaid, failed,                                                                               \
    "another rank failed, and ended or lost the store before it could report why. Look for the "  \
    "first error in the logs of the ranks.")                                                      \
  X(unreadable, failed,                                                                           \
    "another rank failed, and its report cannot be read: '{evidence}'. Install the same "         \
    "version of ringkern for all ranks.")
