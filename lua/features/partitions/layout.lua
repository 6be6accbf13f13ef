-- The layout of a partitioned queue (docs/design/partitions.md): its number and the names of its partitions. Partition 0,
-- the queue itself, stores it in the fields `partitions` and `layoutNumber` of its meta key, each other partition in
-- `knownLayout` and `layoutNumber`. A client adds with the number of the layout that it knows, and a partition refuses the
-- job unless that is its own number. A partition replaces a number only by a later one.
-- A partition that was deleted with its queue has P:deleted-layout for DELETED_MS: layouts up to its number are refused, so
-- that a late client does not write to a partition that no queue has any more.

local FEATURE = 'partitions:0.2.0'
local FIELD = 'layoutNumber'
local DELETED_MS = 86400000
local M = {}
G.layout = M

M.FIELD = FIELD

-- Store the number of a layout.
M.store = function(q, number)
  G.use_feature(q, FEATURE)
  redis.call('HSET', q.meta, FIELD, G.int(number))
end

local function is_partitioned(q)
  local features = rawget(q, 'features')
  return features and features[FEATURE]
end

-- Return the number of the layout; 0 = the queue has no partitions.
M.number = function(q)
  return is_partitioned(q) and G.count_of(redis.call('HGET', q.meta, FIELD)) or 0
end

-- Return the error reply for a layout number that is outdated.
M.refusal = function(q, stored, number)
  return redis.error_reply('ERR layout ' .. G.int(stored) .. ' of queue ' .. string.sub(q.P, 1, -2) .. ', the client used '
    .. G.int(number))
end

local function deleted_key(q) return q.P .. 'deleted-layout' end

-- Return the largest number of a layout that was deleted here; 0 = none, or long ago.
M.deleted = function(q) return G.count_of(redis.call('HGET', deleted_key(q), 'number')) end

-- Remove the number of a layout that is being deleted, and refuse layouts up to it from now on.
M.note_deleted = function(q, number)
  redis.call('HDEL', q.meta, FIELD)
  if M.deleted(q) < number then redis.call('HSET', deleted_key(q), 'number', G.int(number)) end
  redis.call('PEXPIRE', deleted_key(q), DELETED_MS)
end

-- Return the error reply for a client that does not know the layout; nil for one that does. number: of its layout, 0 =
-- a queue without partitions; absent for clients that add to partition 0 without knowing of others.
M.check = function(q, number)
  if not number then return nil end
  if number == 0 and not is_partitioned(q) then return nil end
  local stored = G.count_of(redis.call('HGET', q.meta, FIELD))
  if stored == number then return nil end
  return M.refusal(q, stored, number)
end
