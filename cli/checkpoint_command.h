// `bellows checkpoint`: what files of weights hold, whether they are whole, other forms of them.
#pragma once

namespace bellows::cli {

/// `bellows checkpoint inspect …` and so on; argv[0] is "checkpoint". Prints, and returns the exit
/// code; throws nothing.
int checkpoint_command(int argc, char** argv);

/// argv[0] is the command's name. Throw what the exit code is made of.
int checkpoint_inspect(int argc, char** argv);
int checkpoint_verify(int argc, char** argv);
int checkpoint_convert(int argc, char** argv);
int checkpoint_diff(int argc, char** argv);

}  // namespace bellows::cli
