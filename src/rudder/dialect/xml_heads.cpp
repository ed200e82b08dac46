#include "rudder/dialect/xml_heads.h"

#include "rudder/dialect/json_scanner.h"
#include "rudder/dialect/xml_marks.h"

namespace rudder::dialect {

namespace {

bool may_be_in_name(char byte) {
  const bool is_letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
  return is_letter || (byte >= '0' && byte <= '9') || byte == '_' || byte == '-' || byte == '.';
}

}  // namespace

void XmlName::begin(bool in_mark) {
  name_.clear();
  tag_.clear();
  part_ = in_mark && !dialect_.xml.call.empty() ? Part::kMark : Part::kName;
}

XmlName::Step XmlName::push(char byte) {
  switch (part_) {
    case Part::kMark:
      return mark(byte);
    case Part::kName:
      return dialect_.xml.call.empty() ? name_alone(byte) : name(byte);
    case Part::kBehind:
      return behind(byte);
  }
  return Step::kStray;
}

XmlName::Step XmlName::mark(char byte) {
  tag_.push_back(byte);
  if (!dialect_.xml.call.starts_with(tag_)) return Step::kStray;
  if (tag_ == dialect_.xml.call) part_ = Part::kName;
  return Step::kMore;
}

XmlName::Step XmlName::name(char byte) {
  if (byte != '>') {
    if (name_.empty() && is_blank(byte)) return Step::kMore;
    if (byte == '<' || byte == '\n' || name_.size() == kMaxNameBytes) return Step::kStray;
    name_.push_back(byte);
    return Step::kMore;
  }
  name_ = std::string(bare_name(name_));
  return name_.empty() ? Step::kStray : Step::kName;
}

XmlName::Step XmlName::name_alone(char byte) {
  if (byte == '\n' || byte == '<') {
    if (name_.empty()) return byte == '\n' ? Step::kMore : Step::kStray;
    part_ = Part::kBehind;
    if (byte == '<') tag_.push_back(byte);
    return Step::kMore;
  }
  if (!may_be_in_name(byte) || name_.size() == kMaxNameBytes) return Step::kStray;
  name_.push_back(byte);
  return Step::kMore;
}

XmlName::Step XmlName::behind(char byte) {
  if (tag_.empty() && is_blank(byte)) return Step::kMore;
  if (tag_.empty() && byte == '{') return Step::kObject;
  tag_.push_back(byte);
  if (tag_ == dialect_.xml.key) return Step::kKey;
  if (tag_ == dialect_.end) return Step::kEnd;
  const bool goes_on = dialect_.xml.key.starts_with(tag_) || dialect_.end.starts_with(tag_);
  return goes_on ? Step::kMore : Step::kStray;
}

void XmlKey::begin() {
  raw_.clear();
  rest_.clear();
  has_ended_ = false;
}

XmlKey::Step XmlKey::push(char byte) {
  if (xml_.key_end.empty()) return up_to_bracket(byte);
  raw_.push_back(byte);
  if (has_ended_) {
    if (rest_.empty() && is_blank(byte)) return Step::kMore;
    rest_.push_back(byte);
    if (rest_ == xml_.value) return Step::kWhole;
    return xml_.value.starts_with(rest_) ? Step::kMore : Step::kNoMark;
  }
  const bool has_value = raw_.ends_with(xml_.value);  // its own end is missing
  if (!has_value && !raw_.ends_with(xml_.key_end)) {
    if (raw_.size() > 2 * kMaxNameBytes) raw_.erase(0, kMaxNameBytes);
    return Step::kMore;
  }
  text_ = std::string(bare_name(std::string_view(raw_).substr(0, raw_.find('<'))));
  has_ended_ = true;
  return has_value ? Step::kWhole : Step::kMore;
}

XmlKey::Step XmlKey::up_to_bracket(char byte) {
  const bool is_line = byte == '\n' && !trimmed(raw_).empty();
  if (byte != '>' && !is_line) {
    if (raw_.size() < kMaxNameBytes) raw_.push_back(byte);
    return Step::kMore;
  }
  text_ = std::string(bare_name(raw_));
  raw_.push_back(byte);
  return is_line ? Step::kLine : Step::kWhole;
}

}  // namespace rudder::dialect
