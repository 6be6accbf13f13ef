-- Read large keys page by page, and write them in parts.

local SCAN = G.rows.scan
local PART, KEYS = 1000, 500

-- Return the members or fields of a page, flat, and the cursor of the next page. cursor: '' = the start; of the reply: the
-- end.
G.scan = function(command, key, cursor, count)
  local page = redis.call(command, key, cursor == '' and '0' or cursor, 'COUNT', count)
  return page[SCAN.found], page[SCAN.cursor] == '0' and '' or page[SCAN.cursor]
end

-- Return the size of a key, 0 if it is of a foreign type.
G.size = function(command, key)
  local size = G.pcall(command, key)
  return type(size) == 'number' and size or 0
end

-- Call a command with a long list of arguments. Return the sum of the replies.
G.in_parts = function(command, key, list)
  local sum = 0
  for from = 1, #list, PART do
    sum = sum + redis.call(command, key, unpack(list, from, math.min(from + PART - 1, #list)))
  end
  return sum
end

-- Return the sum of what a command with many keys replies.
G.sum_of = function(command, keys)
  local sum = 0
  for from = 1, #keys, KEYS do
    sum = sum + redis.call(command, unpack(keys, from, math.min(from + KEYS - 1, #keys)))
  end
  return sum
end

-- Write many members of a sorted set, or fields of a hash, that often starts empty. A small key of these types is a list
-- that each read and write searches from its start: with a hundred members this costs more than everything else that is
-- written of a job. A member longer than the server's limit for such lists (64 bytes) makes it a tree or table for good.

local LONG = '-----------------------------------------------------------------'
local MANY = 16

local function starts(key, count) return count >= 2 * MANY and redis.call('EXISTS', key) == 0 end

-- members: score, member, …
G.add_members = function(call, key, members)
  local new = starts(key, #members)
  if new then call('ZADD', key, 0, LONG) end
  call('ZADD', key, unpack(members))
  if new then call('ZREM', key, LONG) end
end

-- fields: field, value, …
G.set_fields = function(call, key, fields)
  local new = starts(key, #fields)
  if new then call('HSET', key, LONG, '') end
  call('HSET', key, unpack(fields))
  if new then call('HDEL', key, LONG) end
end
