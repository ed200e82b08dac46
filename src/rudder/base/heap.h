// What the heap of this process keeps of memory that was freed. The allocator is glibc's: threads
// have arenas of their own, and freed memory stays in them until it is asked for again.
#pragma once

namespace rudder {

// Fixes the sizes from which blocks are mapped by themselves (and so given back when they are
// freed) and from which the free end of an arena is given back. Left to itself glibc raises both
// with every large block that is freed, to 32 and 64 MiB: one burst of large bodies, and each arena
// keeps that much. Called once, before there are threads.
void limit_kept_memory();

// Gives free pages between blocks in use back to the operating system. While it runs, which may
// take milliseconds, other threads wait to allocate: call it when little is done. Any thread.
void return_freed_memory();

}  // namespace rudder
