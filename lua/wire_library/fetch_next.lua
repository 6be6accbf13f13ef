-- glidemq_completeAndFetchNext: complete a job and fetch the next one.
-- KEYS 1 stream, 2 completed, 3 events, 4 job, 5 metrics:completed; 6..9 as complete's
--   ARGV 1 id, 2 entry id, 3 returnvalue, 4 now, 5 group, 6 consumer, 7 retention mode, 8 count, 9 age s, 10 deps
--   member, 11 parent id, 12 ordering key hint, 13 sequence hint, 14 group hint (these three are read from the hash
--   instead), 15 broadcast, 16 processedOn hint ('' = unknown), 17 has parents, 18 skip events, 19 skip metrics
--   -> {'NEXT_NONE', id} | {'NEXT_REVOKED', id, next id, next entry} | {'NEXT_HASH', id, next id, next entry, f, v,
--   ...}
-- Bound: three candidates from each of the priority list, the LIFO list and the stream.
local W = G.W

local TRIES = 3

-- Return a ready job from a list, or nil. Jobs that must not run are failed, parked or dropped.
local function from_list(q, list, c)
  for _ = 1, TRIES do
    local id = redis.call('RPOP', q[list])
    if not id then return nil end
    local h, flat = W.read(q.J .. id)
    local rejection = W.reject_reason(q, id, h, c.now, '', false)
    if not rejection then
      local set = W.activate(q, id, h, c.now, '', false)
      G.pcall('INCR', q.list_active)
      if not c.quiet then G.emit(q.events, 'active', id) end
      return W.reply_of({ 'NEXT_HASH', c.id, id, '' }, flat, set)
    end
    if rejection == 'REVOKED' and not G.TERMINAL[h.state] then W.end_revoked(q, id, h, c.now) end
  end
  return nil
end

local function read_entry(q, c)
  local reply = G.pcall('XREADGROUP', 'GROUP', c.group, c.consumer, 'COUNT', 1, 'STREAMS', q.stream, '>')
  if not reply or reply.err or not reply[1] then return nil end
  local entry = reply[1][2][1]
  return entry[1], G.entry_job(entry[2])
end

local function from_stream(q, c)
  for _ = 1, TRIES do
    local entry, id = read_entry(q, c)
    if not entry then return nil end
    local h, flat = nil, nil
    if id then h, flat = W.read(q.J .. id) end
    local rejection = W.reject_reason(q, id, h, c.now, entry, false)
    if not rejection then
      return W.reply_of({ 'NEXT_HASH', c.id, id, entry }, flat, W.activate(q, id, h, c.now, entry, false))
    end
    if rejection == 'REVOKED' then return { 'NEXT_REVOKED', c.id, id, entry } end
    -- No entry of a job that cannot run stays pending.
    W.ack(q, c.group, entry)
  end
  return nil
end

G.export('completeAndFetchNext', { 'allow-oom' }, function(keys, args)
  local q = W.job_queue(keys[4], args[1])
  local c = W.completion(args, 7, {
    consumer = args[6], broadcast = args[15] == '1', started = tonumber(args[16]), quiet = args[18] == '1',
    no_metrics = args[19] == '1',
  })
  W.complete(q, keys, c)
  local next_job = not c.broadcast and (from_list(q, 'priority', c) or from_list(q, 'lifo', c) or from_stream(q, c))
  return next_job or { 'NEXT_NONE', c.id }
end)
