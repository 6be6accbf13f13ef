-- The codecs of a server's Lua: cmsgpack and cjson. Run once per in-memory server; returns cjson.null.
-- From Python: unpack_msgpack(bytes) and decode_json(text) -> ok, values; pack_double(number) -> bytes.
-- luacheck: ignore 121 122
local unpack_msgpack, decode_json, pack_double = ...

-- MessagePack as lua-cmsgpack packs it: whole numbers as integers, an empty table as an array. `pack(value, out, at)`
-- writes behind out[at] and returns the index of the last part. Most of a reply is packed here, hence the shortcuts.
local char, floor, format, concat = string.char, math.floor, string.format, table.concat

local SMALL, SHORT = {}, {} -- the encodings of 0 to 127; the headers of strings of up to 31 bytes
for n = 0, 127 do SMALL[n] = char(n) end
for n = 0, 31 do SHORT[n] = char(160 + n) end

local function bytes_of_2(n)
  local low = n % 256
  return char((n - low) / 256, low)
end

local function bytes_of_4(n)
  local a = n % 256
  n = (n - a) / 256
  local b = n % 256
  n = (n - b) / 256
  local c = n % 256
  return char((n - c) / 256, c, b, a)
end

local function pack_integer(n)
  if n >= 0 then
    if n < 128 then return SMALL[n] end
    if n < 256 then return char(204, n) end
    if n < 65536 then return '\205' .. bytes_of_2(n) end
    if n < 4294967296 then return '\206' .. bytes_of_4(n) end
    local low = n % 4294967296
    return '\207' .. bytes_of_4((n - low) / 4294967296) .. bytes_of_4(low)
  end
  if n >= -32 then return char(n + 256) end
  if n >= -128 then return char(208, n + 256) end
  if n >= -32768 then return '\209' .. bytes_of_2(n + 65536) end
  if n >= -2147483648 then return '\210' .. bytes_of_4(n + 4294967296) end
  return pack_double(n)
end

local function header(n, small, fix, medium, large)
  if n <= small then return char(fix + n) end
  if n < 65536 then return medium .. bytes_of_2(n) end
  return large .. bytes_of_4(n)
end

local pack

-- Return the number of elements of an array, or nil if the table is not an array.
local function length_of_array(t)
  local count, highest = 0, 0
  for key in pairs(t) do
    if type(key) ~= 'number' or key < 1 or key ~= floor(key) then return nil end
    count = count + 1
    if key > highest then highest = key end
  end
  if count ~= highest then return nil end
  return count
end

local function pack_table(t, out, at)
  local n = length_of_array(t)
  if n then
    at = at + 1
    out[at] = header(n, 15, 144, '\220', '\221')
    for i = 1, n do at = pack(t[i], out, at) end
    return at
  end
  local count = 0
  for _ in pairs(t) do count = count + 1 end
  at = at + 1
  out[at] = header(count, 15, 128, '\222', '\223')
  for key, value in pairs(t) do at = pack(value, out, pack(key, out, at)) end
  return at
end

-- Pack a table whose last key in order of traversal is its length: an array, unless it has holes.
local function pack_array(t, n, out, at)
  local start = at
  at = at + 1
  out[at] = header(n, 15, 144, '\220', '\221')
  for i = 1, n do
    local value = t[i]
    if value == nil then
      for j = start + 1, at do out[j] = nil end
      return pack_table(t, out, start)
    end
    at = pack(value, out, at)
  end
  return at
end

local function pack_number(n)
  local small = SMALL[n]
  if small then return small end
  if n % 1 == 0 and n > -2 ^ 63 and n < 2 ^ 63 then return pack_integer(n) end
  return pack_double(n)
end

pack = function(value, out, at)
  local kind = type(value)
  if kind == 'string' then
    local length = #value
    if length < 32 then
      out[at + 1] = SHORT[length]
    elseif length < 256 then
      out[at + 1] = char(217, length)
    else
      out[at + 1] = header(length, 31, 160, '\218', '\219')
    end
    out[at + 2] = value
    return at + 2
  elseif kind == 'number' then
    out[at + 1] = pack_number(value)
    return at + 1
  elseif kind == 'table' then
    local n = #value
    if n > 0 and next(value, n) == nil then return pack_array(value, n, out, at) end
    return pack_table(value, out, at)
  elseif kind == 'boolean' then
    out[at + 1] = value and '\195' or '\194'
  else
    out[at + 1] = '\192'
  end
  return at + 1
end

local function checked(ok, ...)
  if not ok then error((...), 0) end
  return ...
end

cmsgpack = {
  pack = function(...)
    local out, at = {}, 0
    for i = 1, select('#', ...) do at = pack((select(i, ...)), out, at) end
    return concat(out)
  end,
  unpack = function(packed) return checked(unpack_msgpack(packed)) end,
}

-- JSON as lua-cjson writes it: 14 digits, an empty table as an object, slashes escaped.
local null = newproxy()
local ESCAPES = {
  ['"'] = '\\"', ['\\'] = '\\\\', ['/'] = '\\/', ['\b'] = '\\b', ['\f'] = '\\f', ['\n'] = '\\n', ['\r'] = '\\r',
  ['\t'] = '\\t', ['\127'] = '\\u007f',
}

local function quote(text)
  return '"' .. string.gsub(text, '[%c"\\/]', function(c) return ESCAPES[c] or format('\\u%04x', string.byte(c)) end) .. '"'
end

local encode

local function encode_table(t)
  local out, highest, array = {}, 0, next(t) ~= nil
  for key in pairs(t) do
    if type(key) ~= 'number' or key < 1 or key ~= floor(key) then
      array = false
      break
    end
    if key > highest then highest = key end
  end
  if array then
    for i = 1, highest do out[i] = encode(t[i]) end
    return '[' .. concat(out, ',') .. ']'
  end
  for key, value in pairs(t) do
    local name = type(key) == 'number' and format('%.14g', key) or key
    if type(name) ~= 'string' then error('Cannot serialise table: table key must be a number or string', 0) end
    out[#out + 1] = quote(name) .. ':' .. encode(value)
  end
  return '{' .. concat(out, ',') .. '}'
end

encode = function(value)
  local kind = type(value)
  if kind == 'table' then return encode_table(value) end
  if kind == 'string' then return quote(value) end
  if kind == 'boolean' then return tostring(value) end
  if value == nil or value == null then return 'null' end
  if kind ~= 'number' then error('Cannot serialise ' .. kind .. ': type not supported', 0) end
  if value ~= value or value == math.huge or value == -math.huge then
    error('Cannot serialise number: must not be NaN or Inf', 0)
  end
  return format('%.14g', value)
end

cjson = {
  encode = encode,
  decode = function(text) return checked(decode_json(text)) end,
  null = null,
}

return null
