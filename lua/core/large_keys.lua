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
