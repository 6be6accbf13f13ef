-- glidemq_moveToActive: activate a job and return its record.
-- KEYS 1 job, 2 stream (optional)   ARGV 1 now; with KEYS 2: 2 entry id ('' = from a list), 3 group, 4 job id, 5
-- broadcast 0/1
-- -> flat array of all fields of the job's hash, as of now
--    | '' (no such job) | 'REVOKED' (the caller fails it) | 'EXPIRED' (it has been failed)
--    | 'GROUP_ORDERED' | 'GROUP_FULL' | 'GROUP_RATE_LIMITED' | 'GROUP_TOKEN_LIMITED' (parked; the caller drops it)
--    | 'ERR:COST_EXCEEDS_CAPACITY' (it has been failed)
-- An entry without a runnable job is acknowledged here. A leftover entry of a job that is active elsewhere, waits or
-- has ended returns 'GROUP_FULL': the caller drops it. Bound: constant.
local W = G.W

-- Activate the job. Return the fields set in its hash and in the reply.
W.activate = function(q, id, h, now, entry, broadcast)
  local now_text = G.text(now)
  local set = { state = 'active', processedOn = now_text, lastActive = now_text }
  if h.groupKey then set.slot = '1' end
  if entry and not broadcast then set.eid = entry end
  if entry == '' then
    set.src = 'l'
    G.track_list_ids(q, { id })
  elseif entry and (h.lifo == '1' or G.count_of(h.priority) > 0) then
    set.src = 's'
  end
  if not broadcast and (h.state == 'delayed' or h.state == 'prioritized') then redis.call('ZREM', q.scheduled, id) end
  G.set(q, id, unpack(G.flat(set)))
  return set
end

-- Append to `prefix` the hash as HGETALL would return it now. Not by unpack: a parent may have thousands of fields.
W.reply_of = function(prefix, flat, set)
  local n = #prefix
  for i = 1, #flat, 2 do
    local field = flat[i]
    prefix[n + i], prefix[n + i + 1] = field, set[field] or flat[i + 1]
    set[field] = nil
  end
  for field, value in pairs(set) do
    G.append(prefix, field, value)
  end
  return prefix
end

local NOT_READY = { completed = true, failed = true, suspended = true, ['waiting-children'] = true }

-- Return whether this is a leftover entry: the job has ended, waits for something, or is active under another entry.
local function is_left_over(h, entry)
  if NOT_READY[h.state] then return true end
  if h.state ~= 'active' or not entry then return false end
  return entry == '' or (h.eid ~= nil and h.eid ~= entry)
end

-- Return why a job must not be activated now: a documented reply, or nil. Parks, expires and fails the job as
-- documented.
W.reject_reason = function(q, id, h, now, entry, broadcast)
  if not (h and h.state and h.name) then return 'GONE' end
  if h.revoked == '1' then return 'REVOKED' end
  if not broadcast and is_left_over(h, entry) then return 'GROUP_FULL' end
  if W.expired_now(q, id, h, now) then return 'EXPIRED' end
  return W.admit(q, id, h, now)
end

local function arguments(keys, args)
  local id = args[4] or string.match(keys[1], '^.*:job:([^:]*)$')
  if not id then error('no job id in key ' .. keys[1]) end
  return W.job_queue(keys[1], id), id, keys[2] and args[2] or nil, args[3], args[5] == '1'
end

G.export('moveToActive', { 'allow-oom' }, function(keys, args)
  local q, id, entry, group, broadcast = arguments(keys, args)
  local now = G.num(args[1])
  if entry == '' then W.untrack_popped(q, id) end
  local h, flat = W.read(keys[1])
  if not h or not h.state or not h.name then
    if not broadcast then W.ack(q, group, entry) end
    return ''
  end
  local rejection = W.reject_reason(q, id, h, now, entry, broadcast)
  if rejection then
    if rejection ~= 'REVOKED' then W.ack(q, group, entry, broadcast) end
    return rejection
  end
  return W.reply_of({}, flat, W.activate(q, id, h, now, entry, broadcast))
end)
