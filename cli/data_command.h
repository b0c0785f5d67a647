// `bellows data`: what data sets are like, and how fast they are read.
#pragma once

namespace bellows::cli {

/// `bellows data inspect …` or `bellows data bench …`; argv[0] is "data". Prints, and returns the
/// exit code; throws nothing.
int data_command(int argc, char** argv);

/// argv[0] is the command's name. Throw what the exit code is made of.
int inspect_command(int argc, char** argv);
int bench_command(int argc, char** argv);

}  // namespace bellows::cli
