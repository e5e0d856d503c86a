// Shifts the wall clock of a process that has this library in LD_PRELOAD, and of no other.
//
// CLOCK_SHIFT_FILE names a file of eight bytes: nanoseconds that are added to CLOCK_REALTIME, whenever it is
// read through the C library. Writing to the file is a step of the clock. The monotonic clocks stay as they
// are, as they do when a machine's clock is set. What this does not move: time stamps of files, which the
// kernel makes, and waits until a point of the wall clock, which happen inside the C library.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>

namespace {

constexpr long long kSecond = 1000000000LL;

using GetTime = int (*)(clockid_t, timespec*);

GetTime next_gettime = nullptr;
const volatile long long* shift = nullptr;

__attribute__((constructor)) void begin() {
  next_gettime = reinterpret_cast<GetTime>(dlsym(RTLD_NEXT, "clock_gettime"));
  const char* path = std::getenv("CLOCK_SHIFT_FILE");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void* mapped = mmap(nullptr, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) shift = static_cast<const volatile long long*>(mapped);
}

bool is_wall_clock(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) {
  if (next_gettime == nullptr) begin();  // called by another library's constructor, before ours
  const int result = next_gettime(clock, now);
  if (result == 0 && shift != nullptr && is_wall_clock(clock)) {
    const long long total = now->tv_sec * kSecond + now->tv_nsec + *shift;
    now->tv_sec = total / kSecond;
    now->tv_nsec = total % kSecond;
  }
  return result;
}

int gettimeofday(timeval* now, void*) {
  timespec found;
  const int result = clock_gettime(CLOCK_REALTIME, &found);
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return result;
}

time_t time(time_t* now) {
  timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (now != nullptr) *now = found.tv_sec;
  return found.tv_sec;
}

int timespec_get(timespec* now, int base) {
  return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

}  // extern "C"
