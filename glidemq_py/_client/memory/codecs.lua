-- The codecs of a server's Lua: cmsgpack and cjson. Run once per in-memory server; returns cjson.null.
-- From Python: unpack_msgpack(bytes) and decode_json(text) -> ok, values; pack_double(number) -> bytes.
-- luacheck: ignore 121 122
local unpack_msgpack, decode_json, pack_double = ...

-- MessagePack as lua-cmsgpack packs it: whole numbers as integers, an empty table as an array.
local char, floor, format, concat = string.char, math.floor, string.format, table.concat

local function bytes_of(n, count)
  local out = {}
  for i = count, 1, -1 do
    out[i] = char(n % 256)
    n = floor(n / 256)
  end
  return concat(out)
end

local function pack_integer(n)
  if n >= 0 then
    if n < 128 then return char(n) end
    if n < 2 ^ 8 then return '\204' .. bytes_of(n, 1) end
    if n < 2 ^ 16 then return '\205' .. bytes_of(n, 2) end
    if n < 2 ^ 32 then return '\206' .. bytes_of(n, 4) end
    return '\207' .. bytes_of(n, 8)
  end
  if n >= -32 then return char(n + 256) end
  if n >= -2 ^ 7 then return '\208' .. bytes_of(n + 2 ^ 8, 1) end
  if n >= -2 ^ 15 then return '\209' .. bytes_of(n + 2 ^ 16, 2) end
  if n >= -2 ^ 31 then return '\210' .. bytes_of(n + 2 ^ 32, 4) end
  return pack_double(n)
end

local function header(n, small, fix, medium, large)
  if n <= small then return char(fix + n) end
  if n < 2 ^ 16 then return medium .. bytes_of(n, 2) end
  return large .. bytes_of(n, 4)
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

local function pack_table(t, out)
  local n = length_of_array(t)
  if n then
    out[#out + 1] = header(n, 15, 144, '\220', '\221')
    for i = 1, n do pack(t[i], out) end
    return
  end
  local count = 0
  for _ in pairs(t) do count = count + 1 end
  out[#out + 1] = header(count, 15, 128, '\222', '\223')
  for key, value in pairs(t) do
    pack(key, out)
    pack(value, out)
  end
end

pack = function(value, out)
  local kind = type(value)
  if kind == 'string' then
    if #value >= 32 and #value < 256 then
      out[#out + 1] = '\217' .. char(#value)
    else
      out[#out + 1] = header(#value, 31, 160, '\218', '\219')
    end
    out[#out + 1] = value
  elseif kind == 'number' then
    if value == floor(value) and value > -2 ^ 63 and value < 2 ^ 63 then
      out[#out + 1] = pack_integer(value)
    else
      out[#out + 1] = pack_double(value)
    end
  elseif kind == 'boolean' then
    out[#out + 1] = value and '\195' or '\194'
  elseif kind == 'table' then
    pack_table(value, out)
  else
    out[#out + 1] = '\192'
  end
end

local function checked(ok, ...)
  if not ok then error((...), 0) end
  return ...
end

cmsgpack = {
  pack = function(...)
    local out = {}
    for i = 1, select('#', ...) do pack((select(i, ...)), out) end
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
