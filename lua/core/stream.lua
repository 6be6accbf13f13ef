-- Push to, read from and acknowledge entries of the job stream and its consumer group.

local STREAM_READ = G.rows.stream_read
local STREAM_ENTRY = G.rows.stream_entry
local PENDING_ENTRY = G.rows.pending_entry

G.push_stream = function(q, id, name)
  local entry = redis.call('XADD', q.stream, '*', 'jobId', id, 'name', name or '')
  if rawget(q, 'channels') ~= false then G.ring(q) end
  return entry
end

-- Write the state and the entry of a job; entry: '' = it has none.
G.set_state = function(q, id, state, entry, now)
  redis.call('HSET', q.J .. id, 'state', state, 'eid', entry)
  G.note_state(q, id, state, now)
end

-- Push a ready job to the end of the stream. `eid` finds its entry again without a search.
G.make_waiting = function(q, id, name)
  G.set_state(q, id, 'waiting', G.push_stream(q, id, name))
end

-- Return the start of the range after an entry; '' = from the first on.
G.after = function(entry) return entry == '' and '-' or '(' .. entry end

-- Return the facts of a stream by name.
G.stream_facts = function(key)
  local info, facts = redis.call('XINFO', 'STREAM', key), {}
  for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
  return facts
end

-- Push a further attempt of one subscription, which is for that subscription only.
G.push_for = function(q, id, name, group)
  redis.call('XADD', q.stream, '*', 'jobId', id, 'name', name or '', 'retryGroup', group)
  G.ring(q)
end

-- Acknowledge and delete entries (a list of stream entry ids, at most a few hundred). A failing deletion (a foreign
-- key in place of the stream) must not undo the work already done. Return how many entries were deleted.
G.ack_entries = function(q, entries)
  if #entries == 0 then return 0 end
  G.pcall('XACK', q.stream, G.GROUP, unpack(entries))
  local deleted = G.pcall('XDEL', q.stream, unpack(entries))
  return type(deleted) == 'number' and deleted or 0
end

-- Read new entries for a consumer. A missing group (first use, FLUSHALL, DEL) is created, with the entries after `start`.
G.read_stream = function(q, group, consumer, count, start, create)
  local reply = G.pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', q.stream, '>')
  if reply and reply.err then
    if not string.find(reply.err, 'NOGROUP', 1, true) then error(reply.err, 0) end
    create(q, group, start)
    reply = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', q.stream, '>')
  end
  local read = reply and G.first(reply)
  return read and read[STREAM_READ.entries] or {}
end

-- Return the job id in an entry's fields, or nil if it has none.
G.entry_job = function(fields)
  if not fields then return nil end
  for i = 1, #fields - 1, 2 do
    if fields[i] == 'jobId' then return fields[i + 1] end
  end
  return nil
end

-- Return the entry of a job among the first `count` of a range, or nil.
G.entry_between = function(q, id, from, to, count)
  for _, entry in ipairs(G.pcall('XRANGE', q.stream, from, to, 'COUNT', count)) do
    if G.entry_job(entry[STREAM_ENTRY.fields]) == id then return entry[STREAM_ENTRY.id] end
  end
  return nil
end

-- Return the job of an entry; nil if the stream does not have it.
G.job_at = function(q, entry)
  local found = G.first(G.pcall('XRANGE', q.stream, entry, entry))
  return found and G.entry_job(found[STREAM_ENTRY.fields])
end

-- group: nil = that of the workers.
G.is_pending = function(q, entry, group)
  return #G.pcall('XPENDING', q.stream, group or G.GROUP, entry, entry, 1) > 0
end

local SAME_MS_MAX = 2000

-- Return the entry of a job: the one named by its record, else one made in the millisecond in which the job was
-- added. Nil if neither exists, for example for an entry of a Node peer, which uses its own clock.
G.find_entry = function(q, id, eid, timestamp)
  if eid == '' then return nil end
  local from, count = eid or timestamp, eid and 1 or SAME_MS_MAX
  if not from then return nil end
  return G.entry_between(q, id, from, from, count)
end

local PENDING_PAGE, PENDING_PAGES = 1000, 5

-- Return which entries of a page (a non-empty reply of XRANGE) are pending: a set of entry ids. A group may still
-- hold entries that are no longer in the stream, so there can be more of them than the page has. With very many, each
-- entry of the page is checked.
G.pending_entries = function(q, group, page)
  local pending_ids, from = {}, G.first(page)[STREAM_ENTRY.id]
  for _ = 1, PENDING_PAGES do
    local pending = G.pcall('XPENDING', q.stream, group, from, page[#page][STREAM_ENTRY.id], PENDING_PAGE)
    for _, p in ipairs(pending) do pending_ids[p[PENDING_ENTRY.id]] = true end
    if #pending < PENDING_PAGE then return pending_ids end
    from = '(' .. pending[#pending][PENDING_ENTRY.id]
  end
  for _, entry in ipairs(page) do
    local id = entry[STREAM_ENTRY.id]
    if G.is_pending(q, id, group) then pending_ids[id] = true end
  end
  return pending_ids
end

-- Delete the entries of a page that are not pending, and call `each` with the job id of each.
G.delete_unclaimed = function(q, group, page, each)
  local pending_ids, free = G.pending_entries(q, group, page), {}
  for _, entry in ipairs(page) do
    if not pending_ids[entry[STREAM_ENTRY.id]] then
      free[#free + 1] = entry[STREAM_ENTRY.id]
      local id = G.entry_job(entry[STREAM_ENTRY.fields])
      if id then each(id) end
    end
  end
  if #free > 0 then redis.call('XDEL', q.stream, unpack(free)) end
end
