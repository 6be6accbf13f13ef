-- Track active jobs that were fetched from a list or the scheduled set: they have no stream entry, so nothing is
-- pending for them. `list-active` counts them and the set `list-active-ids` holds their ids, those of Node peers too,
-- who read both. `list-heartbeats` holds ours by last heartbeat. All describe jobs that already run: a foreign key in
-- their place must not undo that.

local FEATURE = 'list-ids:0.2.0'

-- Builds without the feature keep `list-heartbeats` under the name of the set, with which each pop of a Node peer loses
-- jobs: move it. Older wire libraries keep theirs in `list-taken`. Bound: the active list jobs.
G.claim_list_ids = function(q)
  G.use_feature(q, FEATURE)
  local ids = G.pcall('SMEMBERS', q.list_taken)
  if redis.call('TYPE', q.list_active_ids).ok == 'zset' then
    local found = redis.call('ZRANGE', q.list_active_ids, 0, -1, 'WITHSCORES')
    redis.call('UNLINK', q.list_active_ids)
    for i = 1, #found, 2 do
      G.pcall('ZADD', q.list_heartbeats, found[i + 1], found[i])
      ids[#ids + 1] = found[i]
    end
  end
  for _, id in ipairs(ids) do G.pcall('SADD', q.list_active_ids, id) end
  redis.call('UNLINK', q.list_taken)
end

-- settings: see G.settings; nil = not read.
G.track_list_ids = function(q, ids, settings)
  if not (settings and G.uses_feature(settings, FEATURE)) then G.claim_list_ids(q) end
  G.pcall('SADD', q.list_active_ids, unpack(ids))
end

G.track_list_jobs = function(q, ids, now_text, settings)
  if #ids == 0 then return end
  G.track_list_ids(q, ids, settings)
  G.pcall('INCRBY', q.list_active, #ids)
  G.add_members(G.pcall, q.list_heartbeats, G.scored(ids, now_text))
end

-- The counter never goes below zero.
G.untrack_list_jobs = function(q, ids)
  if #ids == 0 then return end
  G.pcall('ZREM', q.list_heartbeats, unpack(ids))
  G.pcall('SREM', q.list_active_ids, unpack(ids))
  local left = math.min(#ids, G.count_of(G.pcall('GET', q.list_active)))
  if left > 0 then G.pcall('INCRBY', q.list_active, -left) end
  G.fair.leave_active(q, ids)
end

G.untrack_list_job = function(q, id) G.untrack_list_jobs(q, { id }) end

-- Return whether a set has the job: also that of a build without the feature, until it is moved.
G.is_list_job = function(q, id)
  return redis.call('ZSCORE', q.list_heartbeats, id) or G.pcall('SISMEMBER', q.list_active_ids, id) == 1
    or type(G.pcall('ZSCORE', q.list_active_ids, id)) == 'string'
end

G.count_list_ids = function(q)
  return math.max(G.size('SCARD', q.list_active_ids), G.size('ZCARD', q.list_active_ids))
end
