#include "larder/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iterator>

#include "larder/base/error.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

// An empty folder of its own for each test, removed at its end.
class Files : public testing::Test {
 protected:
  Files() {
    std::string name = (fs::temp_directory_path() / "larder_file_test.XXXXXX").string();
    if (::mkdtemp(name.data())) folder_ = name;
  }
  ~Files() override { fs::remove_all(folder_); }

  fs::path make(const char* name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  std::ptrdiff_t entries() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

ErrorKind kind_of(const std::function<void()>& action, std::string* message = nullptr) {
  try {
    action();
  } catch (const Error& e) {
    if (message) *message = e.what();
    return e.kind();
  }
  ADD_FAILURE() << "nothing was refused";
  return ErrorKind::kInvalid;
}

TEST_F(Files, AMappingShowsTheBytesAndMovesAlong) {
  MappedFile first(make("a", "hello"));
  MappedFile second(std::move(first));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(second.bytes().data()), 5), "hello");
  MappedFile third(make("b", "x"));
  third = std::move(second);
  EXPECT_EQ(third.bytes().size(), 5u);
}

TEST_F(Files, AnEmptyFileMapsToNothing) {
  EXPECT_EQ(MappedFile(make("empty", "")).bytes().size(), 0u);
  EXPECT_EQ(read_file(folder_ / "empty"), "");
}

TEST_F(Files, ForgottenPagesAreReadAgain) {
  std::string text(50000, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 23);
  const MappedFile file(make("pages", text));
  const std::string_view seen(reinterpret_cast<const char*>(file.bytes().data()), text.size());
  EXPECT_EQ(seen, text);
  for (const auto& [from, count] :
       {std::pair<size_t, size_t>{0, 0}, {10, 100}, {1, 49999}, {0, 50000}}) {
    forget_pages(file.bytes().subspan(from, count));
    EXPECT_EQ(seen, text);
  }
}

TEST_F(Files, AMissingFileIsNamedWithTheReason) {
  std::string message;
  EXPECT_EQ(kind_of([&] { MappedFile file(folder_ / "none"); }, &message), ErrorKind::kIo);
  EXPECT_EQ(message, "cannot open " + (folder_ / "none").string() + ": No such file or directory");
}

TEST_F(Files, AFolderOrAPipeIsNotReadAndDoesNotHang) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  for (const fs::path& path : {folder_, folder_ / "pipe"}) {
    std::string message;
    EXPECT_EQ(kind_of([&] { MappedFile file(path); }, &message), ErrorKind::kIo);
    EXPECT_EQ(message, "cannot read " + path.string() + ": not a regular file");
    EXPECT_THROW(read_file(path), Error);
  }
}

TEST_F(Files, AFileAboveTheLimitIsRefused) {
  const fs::path path = make("big", std::string(11, 'x'));
  EXPECT_EQ(read_file(path, 11).size(), 11u);
  EXPECT_EQ(kind_of([&] { read_file(path, 10); }), ErrorKind::kInvalid);
}

TEST_F(Files, AnAtomicFileAppearsWholeOnCommit) {
  AtomicFile file(folder_ / "out");
  file.write("abc", 3);
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  file.commit();
  EXPECT_EQ(read_file(folder_ / "out"), "abc");
  EXPECT_EQ(entries(), 1);
}

TEST_F(Files, AThrowLeavesTheOldFileAndNoTemporaryOne) {
  const fs::path path = make("out", "old");
  EXPECT_THROW(
      {
        AtomicFile file(path);
        file.write("new", 3);
        fail("stop");
      },
      Error);
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(Files, ACommitThatCannotRenameLeavesNoTemporaryFile) {
  fs::create_directories(folder_ / "out" / "inside");
  EXPECT_EQ(kind_of([&] {
              AtomicFile file(folder_ / "out");
              file.write("new", 3);
              file.commit();
            }),
            ErrorKind::kIo);
  EXPECT_EQ(entries(), 1);
}

TEST_F(Files, AnAtomicFileInAMissingFolderIsRefused) {
  EXPECT_EQ(kind_of([&] { AtomicFile file(folder_ / "none" / "out"); }), ErrorKind::kIo);
}

}  // namespace
}  // namespace larder
