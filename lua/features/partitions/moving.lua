-- Keys of a partitioned queue whose partition has changed (docs/design/partitions.md). A client adds with the number of
-- the layout that it knows. A partition refuses it unless that is its own number: a client with an older layout reads it
-- again, and one with a newer layout lets the partition take it over first (advance_layout). So a partition that has a
-- number has the text of that layout too, and a layout that partition 0 loses can be restored.
-- A key stays in its former partition for as long as it has jobs there. As soon as a call finds that it has none, the key
-- is in P:moved-keys until the next layout, so it never returns while its jobs are added elsewhere.
-- A queue that was deleted leaves P:deleted-layout in each of its partitions for DELETED_MS: layouts up to its number are
-- refused, so that a late client does not write to a partition that no queue has any more. In partition 0, it has the
-- text of the layout too, until all other partitions are deleted.
-- One text may be an ordering key, a deduplication id and a custom id, also of one job. So it is one key: it moves only if
-- it has no jobs as an ordering key, and none that it deduplicates.

local JOB, ROUTED, DEDUPLICATION = G.rows.new_job, G.rows.routed_key, G.rows.deduplication
local HOMED = G.rows.homed_job
local FEATURE = 'partitions:0.2.0'
local FIELD = 'layoutNumber'
local DELETED_MS = 86400000
local M = {}
G.moving = M

M.FEATURE, M.FIELD = FEATURE, FIELD

-- Note the number of a new layout.
M.advance = function(q, number)
  G.use_feature(q, FEATURE)
  redis.call('HSET', q.meta, FIELD, G.int(number))
  redis.call('UNLINK', q.moved_keys)
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

-- Return the largest number of a layout that was deleted here; 0 = none, or long ago.
M.deleted = function(q) return G.count_of(redis.call('HGET', q.deleted_layout, 'number')) end

-- Return whether further partitions of a deleted queue may still exist. q: partition 0
M.is_being_deleted = function(q) return redis.call('HEXISTS', q.deleted_layout, 'layout') == 1 end

-- Refuse layouts up to this number from now on.
M.note_deleted = function(q, number)
  if M.deleted(q) < number then redis.call('HSET', q.deleted_layout, 'number', G.int(number)) end
  if not M.is_being_deleted(q) then redis.call('PEXPIRE', q.deleted_layout, DELETED_MS) end
end

-- Return the error reply for a new layout of partition 0 that is refused; nil if it is not.
M.refused_new = function(q, number)
  local deleted = M.deleted(q)
  if deleted >= number or M.is_being_deleted(q) then return M.refusal(q, deleted, number) end
  return nil
end

-- Return the error reply for a client that does not know the layout; nil for one that does. number: of its layout, 0 =
-- a queue without partitions; absent for clients that add to partition 0 without knowing of others.
-- The number of partition 0 is that of the layout that it stores.
M.check = function(q, number)
  if not number then return nil end
  if number == 0 and not is_partitioned(q) then return nil end
  local stored = G.count_of(redis.call('HGET', q.meta, FIELD))
  if stored == number then return nil end
  return M.refusal(q, stored, number)
end

local function group_in_use(q, name)
  local issued = G.count_of(redis.call('HGET', q.ordering, name))
  if issued == 0 then return false end
  local g = G.groups.group(q, name)
  G.groups.skip_marked(g)
  return g.active > 0 or g.nextSeq ~= issued + 1 or redis.call('ZCARD', g.queue) > 0
end

-- dedup: of the job that is added; false for one without, which must not take the key away from jobs that have it.
local function is_unique_here(q, key, dedup, now)
  if dedup then return G.is_deduplicated(q, key, dedup[DEDUPLICATION.ttl], now) end
  return G.may_be_deduplicated(q, key, now)
end

-- Return whether the key may be in use here again: a requeued job gets a place in its group even if the group was
-- forgotten, but no entry of deduplication. So unique ids that this partition never had are not listed.
local function may_return(q, routed)
  local key = routed[ROUTED.key]
  return routed[ROUTED.ordered] or redis.call('HEXISTS', q.dedup, key) == 1 or redis.call('HEXISTS', q.ordering, key) == 1
end

M.ABSENT, M.IN_USE, M.HAS_ID = 0, 1, 2

-- Return HAS_ID if this partition has the job with the key's id, IN_USE if it has jobs that the key orders or
-- deduplicates, or ABSENT. An absent key is moved, whatever the row has it for, unless `peek`.
M.look_up = function(q, routed, now, peek)
  local key, id = routed[ROUTED.key], routed[ROUTED.id]
  if id and redis.call('EXISTS', q.J .. id) == 1 then return M.HAS_ID end
  if redis.call('SISMEMBER', q.moved_keys, key) == 1 then return M.ABSENT end
  if group_in_use(q, key) or is_unique_here(q, key, routed[ROUTED.deduplication], now) then return M.IN_USE end
  if not peek and may_return(q, routed) then redis.call('SADD', q.moved_keys, key) end
  return M.ABSENT
end

-- Return whether a new job of the key belongs to this partition, which is a former one of the key.
M.in_use = function(q, routed, now) return M.look_up(q, routed, now) ~= M.ABSENT end

-- Return what `in_use` needs of a job: the keys that a job has are equal.
M.routed_key = function(row)
  local id, ordering, dedup = row[JOB.id], row[JOB.ordering], row[JOB.deduplication]
  local key = ordering and ordering[G.rows.ordering.group] or dedup and dedup[DEDUPLICATION.id] or id
  return G.new.routed_key({
    key = key, id = id and id ~= '' and id or false, ordered = ordering and true or false, deduplication = dedup or false,
  })
end

-- Return the row of a finished job with a key that has jobs in one partition only, if the queue has several: the client
-- decides whether it may be requeued (requeue_keyed). nil = it may be. retries: of the failure policy.
M.keyed = function(q, id, h, retries)
  if not is_partitioned(q) then return nil end
  local group, option = G.given(h.groupKey), G.unique_option(h.opts)
  if not (group or option) then return nil end
  return G.new.keyed_job({
    id = id, state = h.state, ordering = group or false, deduplication = option and option.id or false,
    ttl = option and G.count_of(option.ttl) or 0, retries = retries or false,
  })
end

-- Return whether a finished job of the key may be requeued here, a former partition of the key: no call has found that
-- the key has no jobs here any more, and such a call would have listed it. While a client looks for jobs of such keys, to
-- remove the former layouts, none is requeued.
local function is_here(q, routed)
  local settling, number = unpack(redis.call('HMGET', q.meta, 'settling', FIELD))
  if settling and settling == number then return false end
  return redis.call('SISMEMBER', q.moved_keys, routed[ROUTED.key]) == 0 and may_return(q, routed)
end

-- The same for all keys of a job. homed: row of requeue_keyed.
M.may_requeue = function(q, h, homed)
  local group, option = G.given(h.groupKey), G.unique_option(h.opts)
  if group and not homed[HOMED.ordering_home]
    and not is_here(q, G.new.routed_key({ key = group, id = false, ordered = true, deduplication = false })) then
    return false
  end
  return not option or homed[HOMED.unique_home]
    or is_here(q, G.new.routed_key({ key = option.id, id = false, ordered = false, deduplication = false }))
end
