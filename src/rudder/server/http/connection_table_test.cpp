// Which connections are admitted, refused and asked to close.
#include "rudder/server/http/connection_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace rudder::server {
namespace {

struct Asked : Evictable {
  void ask_to_close() override { ++times; }
  int times = 0;
};

TEST(ConnectionTable, TheLongestIdleConnectionIsAskedToClose) {
  ConnectionTable table(3, 100);
  std::vector<Asked> connections(3);
  std::vector<std::unique_ptr<ConnectionTable::Entry>> entries;
  for (Asked& connection : connections) {
    entries.push_back(table.admit("a"));
    ASSERT_FALSE(entries.back()->is_refused());
    entries.back()->set_idle(&connection);
  }
  entries[0]->set_busy();
  entries[0]->set_idle(&connections[0]);  // now the second one has been idle longest
  entries[2]->set_busy();
  const auto asked = [&] {
    return std::vector<int>{connections[0].times, connections[1].times, connections[2].times};
  };
  const auto newcomer = table.admit("b");
  EXPECT_FALSE(newcomer->is_refused());
  EXPECT_EQ(asked(), (std::vector<int>{0, 1, 0}));
  const auto second = table.admit("b");
  EXPECT_FALSE(second->is_refused());
  EXPECT_EQ(asked(), (std::vector<int>{1, 1, 0})) << "each is asked once";
  EXPECT_TRUE(table.admit("b")->is_refused()) << "the third is busy";
  entries[1].reset();
  entries[0].reset();
  EXPECT_TRUE(table.admit("b")->is_refused()) << "the newcomers are connected";
  entries[2]->set_idle(&connections[2]);
  EXPECT_FALSE(table.admit("b")->is_refused());
  EXPECT_EQ(connections[2].times, 1);
}

TEST(ConnectionTable, AConnectionThatIsBusyAgainStaysOpen) {
  ConnectionTable table(1, 100);
  Asked connection;
  const auto entry = table.admit("a");
  entry->set_idle(&connection);
  auto newcomer = table.admit("a");
  EXPECT_EQ(connection.times, 1);
  entry->set_busy();  // its request came first
  EXPECT_TRUE(table.admit("a")->is_refused());
  newcomer.reset();
  EXPECT_TRUE(table.admit("a")->is_refused()) << "the first one is still connected";
}

TEST(ConnectionTable, ConnectionsOfOneAddressAreBounded) {
  ConnectionTable table(10, 0);
  std::vector<std::unique_ptr<ConnectionTable::Entry>> entries;
  for (int i = 0; i < 5; ++i) {
    entries.push_back(table.admit("a"));
    EXPECT_FALSE(entries.back()->is_refused());
  }
  EXPECT_TRUE(table.admit("a")->is_refused()) << "half of all";
  EXPECT_FALSE(table.admit("b")->is_refused());
  entries.pop_back();
  EXPECT_FALSE(table.admit("a")->is_refused());
}

TEST(ConnectionTable, FewAreToldThatThereIsNoRoom) {
  ConnectionTable table(1, 100);
  const auto entry = table.admit("a");
  std::vector<std::unique_ptr<ConnectionTable::Entry>> refused;
  for (int i = 0; i < ConnectionTable::kReserve / 2; ++i) {
    refused.push_back(table.admit("a"));
    ASSERT_TRUE(refused.back() != nullptr && refused.back()->is_refused());
  }
  EXPECT_EQ(table.admit("a"), nullptr);
}

}  // namespace
}  // namespace rudder::server
